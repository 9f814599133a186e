// The error word of a workspace: where a call of a context with check_indices notes the first bad value.
#pragma once

#include "core/device.h"
#include "core/stage.h"
#include "core/workspace.h"
#include "ops/check_data.h"

namespace smla {

constexpr size_t kErrorWordBytes = 64;
constexpr size_t kErrorWordAt = kWorkspaceHeader - kErrorWordBytes;
static_assert(sizeof(smla_error_word) <= kErrorWordBytes);

// Keeps an earlier finding that nobody has read yet. Throws if the workspace has no room for the word.
void record_error(const Workspace& workspace, Stage stage, const FoundValue& found);
smla_error_word take_error(Device& device, const Workspace& workspace, smla_stream stream);

}  // namespace smla
