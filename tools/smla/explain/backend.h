// Explains which attention backend serves a model on a device.
#pragma once

#include "tool.h"

#include <string>

namespace smla::cli {

struct BackendQuestion {
    std::string device, kv_dtype = "auto", backend;
    int64_t heads = 0;  // 0: the model's
};
int explain_backend(const Tool& tool, const std::string& model, const BackendQuestion& question);

}  // namespace smla::cli
