// Steps before and after the pooling of a token's window, in float or double: finds the rows of the window,
// and finishes the pooled channels. The reference and kernels share this code. One object serves one thread.
#pragma once

#include "ops/compress/compress.h"
#include "ops/map/map.h"
#include "ops/rope/rotate.h"

#include <vector>

namespace smla {

template <class Real>
class EntryMaker {
public:
    explicit EntryMaker(const smla_compress_args& args);

    // Returns whether the token closes a group whose entry has a slot.
    bool closes(int64_t token) const {
        const int64_t position = load_int(args_.positions, token);
        return position >= 0 && position % args_.ratio == args_.ratio - 1 &&
               !cache_.hole(load_int(args_.slots, token));
    }

    // Calls use(row, kv) for each existing state row of the window, oldest first. Channels [kv, kv + D) of
    // the row are pooled; their scores are coff * D channels later.
    template <class Use>
    void each_row(int64_t token, Use use) const {
        const int64_t request = load_int(args_.request_of_token, token),
                      window = overlap(args_) * args_.ratio,
                      first = load_int(args_.positions, token) - window + 1;
        for (int64_t j = 0; j < window; ++j) {
            const int64_t row =
                map_position(args_.state_table, request, first + j, state_.page_tokens, state_.page_rows);
            // with overlap, channels [0,D) pool the older half of the window and [D,2D) the newer half
            if (!state_.hole(row)) use(row, j < window - args_.ratio ? 0 : (overlap(args_) - 1) * width());
        }
    }

    // Normalizes and rotates `entry`, the pooled channels, and writes it to the outputs and the cache.
    void finish(int64_t token, Real* entry);

    int64_t width() const { return cache_.width; }
    const CacheView& state() const { return state_; }

private:
    void norm(Real* entry) const;
    void rotate(int64_t position, Real* entry);

    const smla_compress_args& args_;
    const CacheView state_, cache_;
    const bool rounds_;
    std::vector<Real> weight_;
    Rotation<Real> rotation_;
};

}  // namespace smla
