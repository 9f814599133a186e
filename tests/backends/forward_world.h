// One step of a backend with caches, inputs and outputs, all surroundings poisoned, and the result by plain
// loops in double over what each request holds.
#pragma once

#include "formats/format.h"
#include "serving.h"

#include "core/numbers.h"

#include <map>
#include <memory>

namespace smla::test {

// A tensor of floats of any dtype with `extra` rows behind, all NaN at first.
class Floats {
public:
    Floats() = default;
    Floats(smla_dtype dtype, std::vector<int64_t> shape, int64_t extra = 0);
    void fill(Random& random, int64_t rows, float scale = 1);
    double at(int64_t i, int64_t j = 0, int64_t k = 0) const;
    void set(int64_t i, int64_t j, int64_t k, float value);
    Tensor view() const { return view_; }
    const std::vector<uint8_t>& bytes() const { return memory_; }
    void restore(const std::vector<uint8_t>& bytes) {  // view() stays
        std::copy(bytes.begin(), bytes.end(), memory_.begin());
    }

private:
    std::vector<uint8_t> memory_;
    Tensor view_{};
};

// A cache full of NaN.
struct PoisonedCache {
    std::vector<uint8_t> memory;
    smla_cache cache{};

    PoisonedCache() = default;
    PoisonedCache(smla_format format, int64_t width, int64_t pages, int32_t page_tokens, float scale);
    void write(int64_t row, const std::vector<float>& values) const;
    std::vector<double> read(int64_t row) const;
};

struct WorldSpec {
    const Backend* backend;
    BackendArgs args;
    uint32_t seed = 1;
    bool pair = false;         // DSA: q as a pair
    bool latent_out = false;   // DSA: no up-projection
    bool written = false;      // the cache has the step's keys already
    int64_t padded_heads = 0;  // HYBRID: heads of out behind those of q
    bool sink = true;
    int64_t extra_rows = 2;  // behind the step's tokens
    int64_t view_heads = 0;  // q and out are views of buffers with so many more heads, all NaN
    int64_t columns = 16;    // of the lists
    smla_dtype out = SMLA_F32;
    int32_t decodes = 0;         // so many requests of one token, padded to max_tokens; 0: a random step
    Context* context = nullptr;  // where metadata lie; null: on the host
};

class World {
public:
    explicit World(const WorldSpec& spec);

    void run(smla_engine engine = SMLA_ENGINE_CPU);
    // |out - expected| <= bound * (sum of what was added up).
    void expect_close(double bound) const;
    void expect_written() const;    // the step's keys, in rows of valid tokens
    void expect_untouched() const;  // rows behind the tokens, rows of caches that nobody owns

    WorldSpec spec;
    BackendInstance on;
    Batch batch;
    std::unique_ptr<Metadata> metadata;
    PoisonedCache kv, window;  // HYBRID: compressed and window
    Floats q, q_pe, k_c, k_pe, w_uk_t, w_uv, sink, out, lse;
    Ints topk;
    ForwardArgs args{};

private:
    void make_caches(Random& random);
    void make_inputs(Random& random);
    std::vector<std::vector<double>> attended(int64_t token, int64_t request, int64_t position) const;
    std::vector<double> key(int group, int64_t request, int64_t position) const;
    int64_t row(int group, int64_t request, int64_t position) const;
    std::vector<double> query(int64_t token, int64_t head) const;

    std::vector<uint8_t> window_before_, kv_before_, out_before_;
};

}  // namespace smla::test
