#include "engines/error_word.h"

#include <cstring>

namespace smla {

namespace {

// Returns whether a call can have written this word.
bool plausible(const smla_error_word& word) {
    constexpr smla_error_word kNone{};
    if (word.kind == SMLA_BAD_NONE) return std::memcmp(&word, &kNone, sizeof word) == 0;
    return word.kind > SMLA_BAD_NONE && word.kind <= SMLA_BAD_CANDIDATE && word.stage >= 0 &&
           word.stage < SMLA_STAGE_COUNT;
}

}  // namespace

ErrorPlace* error_place(const Workspace& workspace) {
    if (workspace.bytes < kWorkspaceHeader)
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(workspace.bytes),
             text("at least ", kWorkspaceHeader, " (the header with the error word)"));
    return reinterpret_cast<ErrorPlace*>(static_cast<char*>(workspace.data) + kErrorWordAt);
}

void note_bad_value(const IndexScan& scan, Stage stage, const Env& env) {
    if (env.device->type() != SMLA_CPU) return env.device->note_bad_value(scan, stage, env);
    ErrorPlace* const place = error_place(env.workspace);
    if (place->word.kind != SMLA_BAD_NONE) return;
    if (const FoundValue found = find_bad_value(scan))
        place->word = {found->kind, smla_stage(stage), found->token, found->column, found->value};
}

smla_error_word take_error(Device& device, const Workspace& workspace, smla_stream stream) {
    ErrorPlace* const place = error_place(workspace);
    refuse_capture(device, stream);
    smla_error_word out;
    device.download(&out, &place->word, sizeof out, stream);
    device.wait(stream);
    SMLA_CHECK(plausible(out), "workspace.data", "an invalid error word",
               "memory that smla_workspace_init has zeroed");
    device.fill(&place->word, 0, sizeof out, stream);
    device.wait(stream);
    return out;
}

}  // namespace smla
