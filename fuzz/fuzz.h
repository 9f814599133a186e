// Shared by the fuzzers.
#pragma once

#include "core/status.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

// A property that every input must keep; kept in release builds too.
#define FUZZ_ASSERT(condition)                                                           \
    do {                                                                                 \
        if (!(condition)) {                                                              \
            std::fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            std::abort();                                                                \
        }                                                                                \
    } while (0)

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace smla::fuzz {
bool report();  // prints what the inputs have reached; false: not all that they should have
}  // namespace smla::fuzz
