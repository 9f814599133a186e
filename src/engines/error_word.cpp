#include "engines/error_word.h"

#include <cstring>

namespace smla {

namespace {
char* word_of(const Workspace& workspace) {
    if (workspace.bytes < kWorkspaceHeader)
        fail(SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes", text(workspace.bytes),
             text("at least ", kWorkspaceHeader, ": the error word lies there"));
    return static_cast<char*>(workspace.data) + kErrorWordAt;
}
}  // namespace

void record_error(const Workspace& workspace, Stage stage, const FoundValue& found) {
    char* word = word_of(workspace);
    if (!found) return;
    smla_error_word held;
    std::memcpy(&held, word, sizeof held);
    if (held.kind != SMLA_BAD_NONE) return;
    held = {found->kind, smla_stage(stage), found->token, found->column, found->value};
    std::memcpy(word, &held, sizeof held);
}

smla_error_word take_error(Device& device, const Workspace& workspace, smla_stream stream) {
    char* word = word_of(workspace);
    smla_error_word out;
    device.download(&out, word, sizeof out, stream);
    device.fill(word, 0, sizeof out, stream);
    device.wait(stream);
    return out;
}

}  // namespace smla
