// Any bytes as a trace of requests: either one Error that names the trace and the line, or requests within
// their limits, which are the same again when they are written and read.
#include "fuzz.h"
#include "serve/trace.h"

#include <sstream>

namespace {

using smla::cli::TraceRequest;

void check_requests(const std::vector<TraceRequest>& requests) {
    FUZZ_ASSERT(!requests.empty());
    std::string text = "arrival,prompt,output,shared\n";
    for (const TraceRequest& each : requests) {
        FUZZ_ASSERT(each.arrival >= 0 && each.prompt >= 1 && each.output >= 1);
        FUZZ_ASSERT(each.shared >= 0 && each.shared <= each.prompt && each.total() > each.prompt);
        text += smla::text(each.arrival, ",", each.prompt, ",", each.output, ",", each.shared, "\n");
    }
    std::istringstream again(text);
    const std::vector<TraceRequest> read = smla::cli::parse_trace(again, "again");
    FUZZ_ASSERT(read.size() == requests.size());
    for (size_t i = 0; i < read.size(); ++i)
        FUZZ_ASSERT(read[i].arrival == requests[i].arrival && read[i].prompt == requests[i].prompt &&
                    read[i].output == requests[i].output && read[i].shared == requests[i].shared);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::istringstream file(std::string(reinterpret_cast<const char*>(data), size));
    try {
        check_requests(smla::cli::parse_trace(file, "trace.csv"));
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR);
        FUZZ_ASSERT(error.field.compare(0, 9, "trace.csv") == 0 && !error.wanted.empty());
    }
    return 0;
}
