// Reads the requests of a serving run from a CSV; examples/traces/mixed.csv explains its columns.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace smla::cli {

struct TraceRequest {
    int32_t arrival = 0;             // step
    int32_t prompt = 0, output = 0;  // tokens
    int32_t shared = 0;              // leading tokens of the prompt that are the same in every request

    int32_t total() const { return prompt + output; }
};

std::vector<TraceRequest> read_trace(const std::string& path);

}  // namespace smla::cli
