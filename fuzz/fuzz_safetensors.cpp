// Any bytes as a safetensors file: either one Error that names the file, or tensors whose every byte can be
// read.
#include "fuzz.h"
#include "json_mutator.h"
#include "model/safetensors.h"

#include <cstring>

namespace {

uint64_t header_length(const uint8_t* data) {
    uint64_t length = 0;
    for (int i = 7; i >= 0; --i) length = length << 8 | data[i];
    return length;
}

void set_header_length(uint8_t* data, uint64_t length) {
    for (int i = 0; i < 8; ++i) data[i] = uint8_t(length >> (8 * i));
}

// Changes the header as JSON and keeps its length right; 0 if it was none.
size_t mutate_header(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    if (size < 8 || header_length(data) > size - 8) return 0;
    const size_t length = size_t(header_length(data));
    std::string header(reinterpret_cast<char*>(data) + 8, length);
    const std::string rest(reinterpret_cast<char*>(data) + 8 + length, size - 8 - length);
    if (!smla::fuzz::JsonMutator(seed).mutate(header) || 8 + header.size() + rest.size() > max_size) return 0;
    set_header_length(data, header.size());
    std::memcpy(data + 8, header.data(), header.size());
    std::memcpy(data + 8 + header.size(), rest.data(), rest.size());
    return 8 + header.size() + rest.size();
}

}  // namespace

// Blind mutation rarely keeps the length of the header right, and nothing behind it would be reached: most of
// those mutants get the length that ends at their last brace.
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    if (seed % 2 == 0)
        if (const size_t mutated = mutate_header(data, size, max_size, seed)) return mutated;
    const size_t mutated = LLVMFuzzerMutate(data, size, max_size);
    if (mutated < 8 || seed % 8 == 1) return mutated;
    size_t end = mutated;
    while (end > 8 && data[end - 1] != '}') --end;
    const uint64_t off_by_one = seed % 16 == 3 ? 1 : seed % 16 == 5 ? uint64_t(-1) : 0;
    set_header_length(data, end - 8 + off_by_one);
    return mutated;
}

namespace {

unsigned volatile sum;  // keeps the reads

void read_all(const smla::SafetensorsFile& file) {
    for (const std::string& name : file.names()) {
        smla::HostTensor tensor;
        try {
            tensor = file.tensor(name);
        } catch (const smla::Error& error) {
            FUZZ_ASSERT(error.status == SMLA_DATA_ERROR);  // a dtype or rank that smla has no use for
            continue;
        }
        const size_t width = size_t(smla::dtype_bits(tensor.view.dtype)) / 8;
        const size_t bytes = size_t(smla::element_count(tensor.view)) * width;
        FUZZ_ASSERT(tensor.view.ndim >= 1 && tensor.view.ndim <= SMLA_MAX_NDIM);
        FUZZ_ASSERT(bytes == 0 || reinterpret_cast<uintptr_t>(tensor.view.data) % width == 0);
        for (size_t i = 0; i < bytes; ++i) sum = sum + static_cast<const unsigned char*>(tensor.view.data)[i];
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    // a copy of exactly this size, at every alignment in turn: reads past its end are seen
    const size_t shift = size % 8;
    const std::shared_ptr<char[]> memory(new char[size + shift]);
    if (size > 0) std::memcpy(memory.get() + shift, data, size);
    try {
        read_all(smla::SafetensorsFile::from_bytes({memory, memory.get() + shift, size}, "f"));
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR && error.field.compare(0, 3, "f: ") == 0);
        FUZZ_ASSERT(!error.got.empty() && !error.wanted.empty());
    }
    return 0;
}
