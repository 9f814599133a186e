#include "parts.h"

#include "gpu/layer_weights.h"
#include "kit/small_problems.h"

#include <smla/smla.hpp>

#include <cuda_runtime.h>

#include <cstring>
#include <stdexcept>

namespace gpu {

namespace {

smla::Context checking_context() {
    smla_context_args args{};
    args.engine = SMLA_ENGINE_CUDA;
    args.check_indices = 1;
    return smla::Context(args);
}

void append(Bits& bits, const void* data, size_t bytes) {
    const uint8_t* const from = static_cast<const uint8_t*>(data);
    bits.insert(bits.end(), from, from + bytes);
}
void append(Bits& bits, const smla::Tensor& tensor) {
    Bits own(tensor.memory().bytes());
    tensor.memory().download(own.data(), own.size());
    append(bits, own.data(), own.size());
}

// attend, with the kernels that check its rows.
class StagePart : public Part {
public:
    StagePart()
        : q_(context_.copy_of(host_.q, {Problem::tokens, Problem::heads, Problem::width})),
          rows_(context_.copy_of(host_.rows, {Problem::tokens, Problem::listed})),
          out_(context_.tensor<float>({Problem::tokens, Problem::heads, Problem::width})),
          keys_(context_.cache(SMLA_ROW_F32, Problem::pages, Problem::page_tokens, Problem::width)),
          workspace_(context_.workspace()) {
        keys_.memory().upload(host_.keys.data(), host_.keys.size() * sizeof(float));
    }
    void run(smla_stream stream) override {
        smla_attend_args args{};
        args.softmax_scale = 0.2;
        args.q = q_;
        args.primary.cache = keys_;
        args.primary.rows = rows_;
        args.out = out_;
        context_.attend(args, workspace_, stream);
    }
    Bits bits() override {
        if (context_.read_error(workspace_)) throw std::runtime_error("an error word of right rows");
        Bits out;
        append(out, out_);
        return out;
    }

private:
    Problem host_;
    smla::Context context_ = checking_context();
    smla::Tensor q_, rows_, out_;
    smla::Cache keys_;
    smla::Workspace workspace_;
};

class PlanPart : public Part {
public:
    PlanPart() : plan_(context_, plan_maxima()) {}
    void run(smla_stream stream) override {
        smla_plan_batch batch{};
        batch.tokens = 4;
        batch.query_start_loc = starts_;
        batch.seq_lens = lengths_;
        batch.window.block_table = batch.compressed.block_table = table_;
        batch.window.page_tokens = 16;
        batch.compressed.page_tokens = 4;
        batch.stream = stream;
        plan_.build(batch);
    }
    Bits bits() override {
        if (cudaDeviceSynchronize() != cudaSuccess) throw std::runtime_error("the device has an error");
        Bits out;
        for (const char* name : {"position", "window_slot", "window_rows", "compressed_slot"}) {
            const smla_tensor field = plan_.tensor(name);
            Bits own(smla::tensor_bytes(field));
            if (cudaMemcpy(own.data(), field.data, own.size(), cudaMemcpyDefault) != cudaSuccess)
                throw std::runtime_error("a field cannot be read");
            append(out, own.data(), own.size());
        }
        return out;
    }

private:
    smla::Context context_ = checking_context();
    smla::Tensor starts_ = context_.copy_of(std::vector<int32_t>{0, 1, 3}),
                 lengths_ = context_.copy_of(std::vector<int32_t>{5, 9}),
                 table_ = context_.copy_of(std::vector<int32_t>{3, 1, 0, 7, 2, 6, 5, 4}, {2, 4});
    smla::Plan plan_;
};

class BackendPart : public Part {
public:
    BackendPart() : backend_(context_, BackendStep::backend()), metadata_(backend_.metadata()) {
        const std::vector<float> zeros(step_.memory.size());
        cache_.memory().upload(zeros.data(), zeros.size() * sizeof(float));
    }
    void run(smla_stream stream) override {
        smla_plan_batch batch = step_.batch();  // on the host
        batch.stream = stream;
        metadata_.build(batch);
        smla_backend_forward_args args = step_.args(metadata_);
        args.q = q_;
        args.k_c = k_c_;
        args.k_pe = k_pe_;
        args.topk_indices = topk_;
        args.w_uk_t = w_uk_t_;
        args.w_uv = w_uv_;
        args.out = out_;
        args.kv_cache = cache_;
        backend_.forward(args, workspace_, stream);
    }
    Bits bits() override {
        Bits out;
        append(out, out_);
        return out;
    }

private:
    BackendStep step_;
    smla::Context context_ = checking_context();
    smla::Tensor q_ = context_.copy_of(step_.q, {3, 2, 6}), k_c_ = context_.copy_of(step_.k_c, {3, 8}),
                 k_pe_ = context_.copy_of(step_.k_pe, {3, 2}), topk_ = context_.copy_of(step_.topk, {3, 4}),
                 w_uk_t_ = context_.copy_of(step_.w_uk_t, {2, 4, 8}),
                 w_uv_ = context_.copy_of(step_.w_uv, {2, 8, 3}), out_ = context_.tensor<float>({3, 6});
    smla::Cache cache_ = context_.cache(SMLA_ROW_F32, 2, 4, 10);
    smla::Workspace workspace_ = context_.workspace();
    smla::Backend backend_;
    smla::Metadata metadata_;
};

smla_session_args session_args() {
    smla_session_args args{};
    args.max_requests = 2;
    args.max_tokens = 64;
    args.max_step_tokens = 16;
    args.page_tokens = 4;
    return args;
}

// A request's first nine tokens and the next one.
class LayerPart : public Part {
public:
    explicit LayerPart(const std::string& kind)
        : weights_(layer_weights(kind)),
          layer_(smla::Layer::from_tensors(context_, weights_.config, weights_.tensors, weights_.layer)),
          session_(layer_, session_args()) {}
    void run(smla_stream) override {
        session_.end_request();
        session_.forward(smla::tensor(hidden_.data(), SMLA_F32, {9, kHidden}),
                         smla::tensor(out_.data(), SMLA_F32, {9, kHidden}));
        session_.forward(smla::tensor(hidden_.data() + 9 * kHidden, SMLA_F32, {1, kHidden}),
                         smla::tensor(out_.data() + 9 * kHidden, SMLA_F32, {1, kHidden}));
    }
    Bits bits() override {
        Bits out;
        append(out, out_.data(), out_.size() * sizeof(float));
        return out;
    }

private:
    LayerWeights weights_;
    std::vector<float> hidden_ = random_floats(size_t(10 * kHidden), 7),
                       out_ = std::vector<float>(10 * kHidden);
    smla::Context context_ = checking_context();
    smla::Layer layer_;
    smla::Session session_;
};

}  // namespace

const std::vector<NamedPart>& parts() {
    static const std::vector<NamedPart> all = {
        {"a stage", [] { return std::make_unique<StagePart>(); }},
        {"a plan", [] { return std::make_unique<PlanPart>(); }},
        {"a backend", [] { return std::make_unique<BackendPart>(); }},
        {"a layer of V3.2", [] { return std::make_unique<LayerPart>("dsa"); }},
        {"a layer of V4", [] { return std::make_unique<LayerPart>("ratio 4"); }}};
    return all;
}

Bits bits_of(const NamedPart& part) {
    const std::unique_ptr<Part> made = part.make();
    made->run(nullptr);
    return made->bits();
}

}  // namespace gpu
