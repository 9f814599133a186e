// smla/hpp/backend.hpp: attention backends, their metadata and their integer operations (smla/rows.h).
#ifndef SMLA_HPP_BACKEND_HPP
#define SMLA_HPP_BACKEND_HPP

#include <smla/backend.h>
#include <smla/rows.h>
#include <smla/hpp/context.hpp>
#include <smla/hpp/error.hpp>
#include <smla/hpp/tensor.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace smla {
inline namespace v0 {

// Describes a device by name, for smla_backend_args. The device need not be present.
inline smla_device_info device(const char* name) {
    smla_device_info out{};
    out.struct_size = sizeof out;
    check(smla_describe_device(name, &out));
    return out;
}

inline std::vector<std::string_view> backends() {
    const char* const* names = nullptr;
    int32_t count = 0;
    check(smla_backend_list(&names, &count));
    return {names, names + count};
}

namespace detail {
template <class Call>
std::string text_of(Call call) {
    size_t bytes = 0;
    check(call(nullptr, &bytes));
    std::string out(bytes, '\0');
    check(call(out.data(), &bytes));
    out.resize(bytes - 1);
    return out;
}
}  // namespace detail

// Returns why a backend cannot serve the arguments, one reason per line; empty if the backend can. If
// `original`, applies the checks of the published backend.
inline std::string why_not(const char* name, smla_backend_args args, bool original = false) {
    args = detail::sized(args);
    return detail::text_of([&](char* buffer, size_t* bytes) {
        return smla_backend_why_not(name, &args, original, buffer, bytes);
    });
}
// Returns JSON: the chosen backend, and every candidate with the reasons against it.
inline std::string select_backend(smla_backend_args args, const char* wanted = nullptr) {
    args = detail::sized(args);
    return detail::text_of(
        [&](char* buffer, size_t* bytes) { return smla_backend_select(&args, wanted, buffer, bytes); });
}

// Buffers with fixed sizes and addresses, whose contents build() changes. An object serves one build, or any
// number of readers, at a time, and keeps its backend alive.
class Metadata {
public:
    explicit Metadata(std::shared_ptr<const smla_backend> backend) {
        smla_backend_metadata* raw = nullptr;
        check(smla_backend_metadata_create(backend.get(), &raw));
        handle_ = {raw, Destroy{std::move(backend)}};
    }

    // Computes the metadata of a step. An invalid batch changes nothing. Tensors on the host may be changed
    // or freed when build() returns; tensors on a GPU must stay valid until the work on batch.stream has
    // finished, and block tables on a GPU until the last forward of the step has finished.
    void build(smla_plan_batch batch) {
        batch = detail::sized(batch);
        check(smla_backend_metadata_build(get(), &batch));
    }

    smla_backend_metadata* get() const { return handle_.get(); }

    std::vector<std::string_view> fields() const {
        const char* const* names = nullptr;
        int32_t count = 0;
        check(smla_backend_metadata_fields(get(), &names, &count));
        return {names, names + count};
    }
    smla_tensor tensor(const char* name) const {
        smla_tensor out{};
        check(smla_backend_metadata_field(get(), name, &out));
        return out;
    }
    // Returns a field as C++ values, without a middle dimension of 1: [Td,1,window] becomes [Td,window].
    // Throws for a field on a GPU; use tensor() instead.
    template <Element T>
    View<const T> field(const char* name) const {
        smla_tensor out = tensor(name);
        if (out.ndim == 3 && out.shape[1] == 1) {
            out.ndim = 2;
            out.shape[1] = out.shape[2];
            out.stride_elems[1] = out.stride_elems[2];
        }
        return View<const T>(name, out);
    }
    int32_t number(const char* name) const { return field<int32_t>(name)[0]; }

#define SMLA_HPP_FIELD(name, type, label) \
    View<const type> name() const { return field<type>(label); }
    // fields of V3.2
    SMLA_HPP_FIELD(req_id_per_token, int32_t, "req_id_per_token")
    SMLA_HPP_FIELD(slot_mapping, int64_t, "slot_mapping")
    SMLA_HPP_FIELD(scheduler_metadata, int32_t, "fp8_extra_metadata.scheduler_metadata")
    SMLA_HPP_FIELD(num_splits, int32_t, "fp8_extra_metadata.num_splits")
    // fields of V4
    SMLA_HPP_FIELD(token_to_req_indices, int32_t, "swa.token_to_req_indices")
    SMLA_HPP_FIELD(is_valid_token, uint8_t, "swa.is_valid_token")
    SMLA_HPP_FIELD(decode_swa_indices, int32_t, "swa.decode_swa_indices")
    SMLA_HPP_FIELD(decode_swa_lens, int32_t, "swa.decode_swa_lens")
    SMLA_HPP_FIELD(prefill_swa_indices, int32_t, "swa.prefill_swa_indices")
    SMLA_HPP_FIELD(prefill_swa_lens, int32_t, "swa.prefill_swa_lens")
    SMLA_HPP_FIELD(prefill_seq_lens, int32_t, "swa.prefill_seq_lens")
    SMLA_HPP_FIELD(prefill_gather_lens, int32_t, "swa.prefill_gather_lens")
    SMLA_HPP_FIELD(c128a_decode_rows, int32_t, "c128a_global_decode_topk_indices")
    SMLA_HPP_FIELD(c128a_decode_lens, int32_t, "c128a_decode_topk_lens")
    SMLA_HPP_FIELD(c128a_prefill_entries, int32_t, "c128a_prefill_topk_indices")
#undef SMLA_HPP_FIELD

private:
    struct Destroy {
        std::shared_ptr<const smla_backend> alive;
        void operator()(smla_backend_metadata* metadata) const { smla_backend_metadata_destroy(metadata); }
    };
    std::unique_ptr<smla_backend_metadata, Destroy> handle_;
};

// An attention backend, which keeps its context alive. Any thread may call forward(); a workspace serves one
// call at a time.
class Backend {
public:
    // Creates the backend `name`. A null name selects the best backend for the arguments and the device, or
    // the backend in the environment variable SMLA_BACKEND.
    Backend(const Context& context, smla_backend_args args, const char* name = nullptr) {
        args = detail::sized(args);
        smla_backend* raw = nullptr;
        check(smla_backend_create(context.get(), name, &args, &raw));
        handle_.reset(raw, [alive = context.shared()](smla_backend* made) { smla_backend_destroy(made); });
    }

    smla_backend* get() const { return handle_.get(); }
    // Returns the shared handle. Objects that are created from a backend use this handle to keep it alive.
    const std::shared_ptr<smla_backend>& shared() const { return handle_; }
    smla_backend_info info() const {
        smla_backend_info out{};
        out.struct_size = sizeof out;
        check(smla_backend_get_info(get(), &out));
        return out;
    }
    smla_cache_shape cache_shape(int32_t group, int64_t pages) const {
        smla_cache_shape out{};
        out.struct_size = sizeof out;
        check(smla_backend_cache_shape(get(), group, pages, &out));
        return out;
    }
    Metadata metadata() const { return Metadata(handle_); }

    void forward(smla_backend_forward_args args, Workspace& workspace, smla_stream stream = nullptr) const {
        args.stage_budget = workspace.budget();
        if (args.metadata) workspace.reserve(workspace_size(args), stream);
        forward(args, workspace.get(), stream);
    }
    void forward(smla_backend_forward_args args, smla_workspace workspace,
                 smla_stream stream = nullptr) const {
        args = detail::sized(args);
        check(smla_backend_forward(get(), &args, workspace, stream));
    }
    size_t workspace_size(smla_backend_forward_args args) const {
        args = detail::sized(args);
        size_t bytes = 0;
        check(smla_backend_workspace_size(get(), &args, &bytes));
        return bytes;
    }

private:
    std::shared_ptr<smla_backend> handle_;
};

#define SMLA_HPP_ROWS(name)                     \
    inline void name(smla_##name##_args args) { \
        args = detail::sized(args);             \
        check(smla_##name(&args));              \
    }
SMLA_HPP_ROWS(request_rows)
SMLA_HPP_ROWS(split_context)
SMLA_HPP_ROWS(combined_rows)
SMLA_HPP_ROWS(mixed_rows)
SMLA_HPP_ROWS(decode_schedule)
#undef SMLA_HPP_ROWS
inline void lse_from_log2(const smla_tensor& log2_lse, const smla_tensor& lse) {
    check(smla_lse_from_log2(&log2_lse, &lse));
}
// Returns the number of chunks written.
inline int32_t prefill_chunks(smla_prefill_chunks_args args) {
    args = detail::sized(args);
    check(smla_prefill_chunks(&args));
    return args.count;
}

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_BACKEND_HPP
