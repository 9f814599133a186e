// One cache of an attend call for the CPU kernels: valid rows, their addresses and scaling.
#pragma once

#include "engines/cpu/attend/plan.h"

namespace smla::cpu_attend {

class Source {
public:
    Source(const smla_attend_args& args, const smla_attend_source& source, const Micro& micro);

    // Compacts the token's valid rows into `rows` and returns their number.
    int64_t valid(int64_t token, int32_t* rows) const;
    void locate(const int32_t* rows, int count, KeyAddress* out) const;
    // Returns false if the scaling does not suit these keys (Decoder).
    bool decode(const int32_t* rows, const DecodeArgs& args) const;

    bool scaled() const { return decoder_.scaled; }
    int tiles() const { return tiles_; }            // tiles of scales that products apply
    int tile_words() const { return tile_words_; }  // steps per tile of scales
    bool rounded() const { return rounded_; }
    float scale() const { return view_.tensor_scale(); }
    int row_bytes() const { return row_bytes_; }
    int row_lines() const { return row_lines_; }

private:
    void decode_any(const int32_t* rows, const DecodeArgs& args) const;

    const smla_attend_source* source_ = nullptr;
    CacheView view_;
    Decoder decoder_{};
    bool rounded_ = false;
    bool split_ = false;   // scales at the page's end
    bool flat_ = false;    // row r lies at data + r * row_stride
    int page_shift_ = -1;  // log2 of page_rows if a power of two
    int tiles_ = 0, tile_words_ = 0;
    int row_bytes_ = 0, row_lines_ = 0;
};

}  // namespace smla::cpu_attend
