// A request's compressor inputs, what its entries must be (straight from the model's definition, in double,
// without any cache), and a server that runs it in steps through paged, poisoned caches.
#pragma once

#include "formats/test_cache.h"
#include "ops/compress/compress.h"
#include "ops/ops.h"

#include <cstdint>
#include <vector>

namespace smla::testing {

template <class Real>
constexpr smla_dtype kDtype = sizeof(Real) == 8 ? SMLA_F64 : SMLA_F32;
template <class Real>
constexpr smla_format kState = sizeof(Real) == 8 ? SMLA_STATE_F64 : SMLA_STATE_F32;
template <class Real>
constexpr smla_format kRow = sizeof(Real) == 8 ? SMLA_ROW_F64 : SMLA_ROW_F32;

struct Shape {
    int64_t tokens = 0, ratio = 4, width = 8, pairs = 2;
    int64_t coff() const { return ratio == 4 ? 2 : 1; }
    int64_t columns() const { return coff() * width; }  // of kv and of score
    int64_t entries() const { return tokens / ratio; }
};

template <class Real>
struct Sequence {
    Sequence(const Shape& shape, uint32_t seed);

    Shape shape;
    double eps = 1e-6;
    std::vector<Real> kv, score, ape, norm;  // [tokens,columns], [ratio,columns], [width]
    std::vector<double> frequencies;

    // [entries,width]; tokens for which `hidden` says so take no part.
    std::vector<double> entries(bool (*hidden)(int64_t token) = nullptr) const;
    // How far an entry computed in Real may lie from entries(): see sequence.cpp.
    double tolerance() const;
};

// Runs tokens [begin, end) of a sequence, or others at the same positions.
template <class Real>
class Server {
public:
    struct Options {
        smla_format format = kRow<Real>;
        int32_t state_page = 4, cache_page = 4;
        int32_t interleave = 0;  // rows of other layers between pages
        bool hadamard = false;
    };
    Server(const Sequence<Real>& sequence, const Options& options, uint32_t seed);

    void step(int64_t begin, int64_t end) { step(sequence_, begin, end); }
    void step(const Sequence<Real>& from, int64_t begin, int64_t end);
    void run(const std::vector<int64_t>& chunks);  // then the rest at once
    void move_pages(uint32_t seed);                // everything to other pages, the old ones poisoned

    int64_t row_of_entry(int64_t entry) const;
    std::vector<Real> entry(int64_t entry);                // decoded
    std::vector<std::vector<uint8_t>> bytes_of_entries();  // what each one owns
    std::vector<Real> entry_rows;                          // [tokens,width]: the op's `entries` output
    TestCache state, cache;
    std::vector<int32_t> state_table;

private:
    smla_compress_args compress_args(const std::vector<int32_t>& positions, const std::vector<int64_t>& slots,
                                     const std::vector<int32_t>& requests, int64_t begin);

    const Sequence<Real>& sequence_;
    Options options_;
    std::vector<int32_t> cache_table_, wide_table_;
};

}  // namespace smla::testing
