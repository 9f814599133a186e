// Reads the requests of a serving run from a CSV; examples/traces/mixed.csv explains its columns.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

namespace smla::cli {

struct TraceRequest {
    int32_t arrival = 0;             // step
    int32_t prompt = 0, output = 0;  // tokens
    int32_t shared = 0;              // leading tokens of the prompt that are the same in every request

    int32_t total() const { return prompt + output; }
};

// Reads a regular file. Throws for anything else, such as a FIFO.
std::vector<TraceRequest> read_trace(const std::string& path);
constexpr size_t kMostTraceBytes = size_t(16) << 20;
// Tokens of all requests: a run keeps an output and a cached row of each.
constexpr int64_t kMostTraceTokens = int64_t(1) << 18;

// Parses the contents of a file. Errors name `path` and the line.
std::vector<TraceRequest> parse_trace(std::istream& file, const std::string& path);

}  // namespace smla::cli
