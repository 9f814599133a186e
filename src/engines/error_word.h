// Error word of a workspace, in which a call of a context with check_indices stores the first bad value.
#pragma once

#include "engines/candidate.h"
#include "ops/check_data.h"

namespace smla {

// End of a workspace's header.
struct ErrorPlace {
    smla_error_word word;  // zero: no finding
    // Both members are zero except during a GPU's scan.
    unsigned long long first;  // complement of the lowest list and item found so far
    unsigned arrived;          // low half: finished blocks; high half: blocks with a finding
};
constexpr size_t kErrorWordBytes = 64;
constexpr size_t kErrorWordAt = kWorkspaceHeader - kErrorWordBytes;
static_assert(sizeof(ErrorPlace) <= kErrorWordBytes);

// Stores the first bad value, unless the word has an unread one. Throws if the workspace has no room for the
// word. On a GPU, runs in stream order.
void note_bad_value(const IndexScan& scan, Stage stage, const Env& env);
// Returns the error word's place in a workspace; throws if there is no room for it.
ErrorPlace* error_place(const Workspace& workspace);

// Returns the error word and clears it. Waits for the stream.
smla_error_word take_error(Device& device, const Workspace& workspace, smla_stream stream);

}  // namespace smla
