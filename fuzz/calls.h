// Calls of any stage on arguments in the caller's memory, in copies of it, or on a GPU.
#pragma once

#include "engines/run.h"
#include "kit/device_copies.h"
#include "kit/scratch.h"

#include <smla/stages.h>

#include <string>
#include <vector>

namespace smla::fuzz {

enum class Where { here, copies, gpu };

struct StageRow {
    smla_status (*call)(smla_context*, const void* args, smla_workspace);
    const char* (*run)(const void* args, const Env&);  // the name of the kernel that ran
    size_t (*workspace)(const void* args, const Env&, size_t budget);
    void (*move)(void* args, kit::DeviceCopies&);
    size_t bytes;  // of its arguments
};
const StageRow& row_of(Stage stage);

// Arguments and their memory in a place. A copy has the guards and the poison of its block around it, and
// fetch() brings them back, too, so that what a kernel wrote there shows in the block.
class Placed {
public:
    Placed(Stage stage, const void* args, Where where);
    const void* args() const { return args_; }
    Device& device() const;
    void fetch() const;  // waits

private:
    Where where_;
    const void* args_;
    kit::DeviceCopies copies_;
    std::vector<std::max_align_t> there_;
};

}  // namespace smla::fuzz
