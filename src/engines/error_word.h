// The error word of a workspace: where a call of a context with check_indices notes the first bad value.
#pragma once

#include "engines/candidate.h"
#include "ops/check_data.h"

namespace smla {

// Lies at the end of a workspace's header.
struct ErrorPlace {
    smla_error_word word;  // zero: nothing was noted
    // Both zero, but for the time of a GPU's scan.
    unsigned long long first;  // complement of the lowest list and item found so far
    unsigned arrived;          // low half: blocks that are done; high half: those that have found something
};
constexpr size_t kErrorWordBytes = 64;
constexpr size_t kErrorWordAt = kWorkspaceHeader - kErrorWordBytes;
static_assert(sizeof(ErrorPlace) <= kErrorWordBytes);

// Keeps an earlier finding that nobody has read yet. Throws if the workspace has no room for the word. On a
// GPU in the order of the call's stream.
void note_bad_value(const IndexScan& scan, Stage stage, const Env& env);
// The error word's place in a workspace; throws if there is no room for it.
ErrorPlace* error_place(const Workspace& workspace);

// Returns the noted word and clears it. Waits for the stream.
smla_error_word take_error(Device& device, const Workspace& workspace, smla_stream stream);

}  // namespace smla
