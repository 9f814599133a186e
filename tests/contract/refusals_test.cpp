// Line 9: every field of every stage that is wrong is refused by its name, before anything is written.
#include "calls.h"

#include "formats/format.h"
#include "kit/context_args.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

namespace contract {
namespace {

// One call on one engine, with a workspace that is large enough for it.
struct Bench {
    Bench(const NamedMaker& maker, const Engine& engine)
        : call(make(maker)), context(engine), scratch(context, call->workspace(context)) {}

    void expect_refused(const std::string& field, smla_status status = SMLA_INVALID_ARGUMENT) {
        EXPECT_TRUE(refused(call->run(context, scratch.get()), status, field)) << call->name;
        EXPECT_TRUE(call->memory.nothing_changed()) << call->name << " " << field;
        EXPECT_TRUE(scratch.clean()) << call->name << " " << field;
    }
    // Some change of a tensor makes another field look wrong: any field of the call will do.
    void expect_refused_somewhere(const std::string& what) {
        const smla_status status = call->run(context, scratch.get());
        EXPECT_EQ(status, SMLA_INVALID_ARGUMENT) << call->name << " " << what << ": " << smla_last_error();
        EXPECT_EQ(std::string(last_error().field).rfind("args.", 0), 0u) << smla_last_error();
        EXPECT_TRUE(call->memory.nothing_changed()) << call->name << " " << what;
    }

    // A field whose memory something else has, too: the error names both.
    void expect_shared(const std::string& field, const std::string& other) {
        expect_refused(field + ".data");
        EXPECT_EQ(std::string(last_error().got), "memory that overlaps " + other) << call->name;
    }
    // The same of memory that more than one other field may have.
    void expect_shared_with_something(const std::string& what) {
        expect_refused_somewhere(what);
        EXPECT_EQ(std::string(last_error().got).rfind("memory that overlaps ", 0), 0u) << smla_last_error();
    }
    // As expect_refused_somewhere; if the memory is what is wrong, the error names `field` and another one.
    void expect_shared_somewhere(const std::string& field, const std::string& other) {
        expect_refused_somewhere(field + " in " + other);
        const std::string named = last_error().field, got = last_error().got;
        if (got.find("shared") == std::string::npos) return;
        const std::string pairs[] = {field + ".data: memory that overlaps " + other,
                                     other + ".data: memory that overlaps " + field};
        EXPECT_NE(std::find(std::begin(pairs), std::end(pairs), named + ": " + got), std::end(pairs))
            << smla_last_error();
    }

    std::unique_ptr<Call> call;
    const Context context;
    const Scratch scratch;
};

template <class Body>
void on_every_call(const Body& body) {
    for (const NamedMaker& maker : all_calls())
        for (const Engine& engine : first_and_last_engine()) {
            Bench bench(maker, engine);
            SCOPED_TRACE(bench.call->name + " on " + engine.name);
            body(bench);
        }
}

// Puts a value where it does not belong for as long as one lives.
template <class T>
class With {
public:
    With(T& place, T value) : place_(place), before_(place) { place = value; }
    ~With() { place_ = before_; }
    With(const With&) = delete;
    With& operator=(const With&) = delete;

private:
    T& place_;
    const T before_;
};

CONTRACT_TEST(L9a_EveryWrongTensorIsRefusedByName) {
    on_every_call([](Bench& bench) {
        for (TensorField& field : bench.call->tensors) {
            smla_tensor& tensor = *field.tensor;
            for (const smla_dtype dtype :
                 {-1, 0, 99, int(SMLA_U8), int(tensor.dtype >= SMLA_I32 ? SMLA_F32 : SMLA_I32)}) {
                const With<smla_dtype> wrong(tensor.dtype, dtype);
                const bool known = dtype > 0 && dtype < 32 && field.field->allowed & smla::dtype_bit(dtype);
                if (known) bench.expect_refused_somewhere(field.name + ".dtype");  // other fields follow it
                else bench.expect_refused(field.name + ".dtype");
            }
            for (const int32_t ndim : {-1, SMLA_MAX_NDIM + 1, INT32_MAX}) {
                const With<int32_t> wrong(tensor.ndim, ndim);
                bench.expect_refused(field.name + ".ndim");
            }
            {
                const With<int32_t> wrong(tensor.ndim, tensor.ndim == 1 ? 2 : tensor.ndim - 1);
                bench.expect_refused(field.name + ".shape");
            }
            if (!field.is_optional()) {
                const With<int32_t> absent(tensor.ndim, 0);
                bench.expect_refused(field.name);
            }
            {
                const With<void*> null(tensor.data, nullptr);
                bench.expect_refused(field.name + ".data");
            }
            for (const int32_t device : {int(SMLA_CUDA), 7, -1}) {
                const With<smla_device_type> elsewhere(tensor.device_type, device);
                bench.expect_refused(field.name + ".device");
            }
        }
    });
}

CONTRACT_TEST(L9b_EveryWrongShapeAndStrideIsRefused) {
    on_every_call([](Bench& bench) {
        for (TensorField& field : bench.call->tensors)
            for (int d = 0; d < field.tensor->ndim; ++d) {
                int64_t& shape = field.tensor->shape[d];
                int64_t& stride = field.tensor->stride_elems[d];
                const std::string at = "[" + std::to_string(d) + "]";
                for (const int64_t size : {int64_t(-1), INT64_MIN, INT64_MAX}) {
                    const With<int64_t> wrong(shape, size);
                    bench.expect_refused_somewhere(field.name + ".shape" + at);
                }
                if (!bench.call->is_free(field, d)) {
                    const With<int64_t> wrong(shape, shape + 1);
                    bench.expect_refused_somewhere(field.name + ".shape" + at);
                }
                for (const int64_t size : {int64_t(-1), INT64_MIN, INT64_MAX}) {
                    const With<int64_t> wrong(stride, size);
                    bench.expect_refused_somewhere(field.name + ".stride_elems" + at);
                    EXPECT_EQ(std::string(last_error().field).rfind(field.name + ".stride_elems", 0), 0u)
                        << smla_last_error();
                }
                const bool written = bench.call->is_output(field) || bench.call->is_in_place(field);
                if (!written || shape == 1) continue;
                const int last = field.tensor->ndim - 1;
                if (d == last && field.field->is_rows) {  // as wide as it overlaps the next row
                    const With<int64_t> wrong(stride, 2);
                    bench.expect_refused(field.name + ".stride_elems" + at);
                }
                // elements that share a place
                for (const int64_t size : {int64_t(SMLA_STRIDE_REPEAT), field.tensor->stride_elems[last]}) {
                    if (size != SMLA_STRIDE_REPEAT && (d == last || field.tensor->shape[last] == 1)) continue;
                    const With<int64_t> wrong(stride, size);
                    bench.expect_refused(field.name + ".stride_elems" + at);
                }
            }
    });
}

CONTRACT_TEST(L9c_EveryWrongCacheIsRefusedByName) {
    on_every_call([](Bench& bench) {
        for (CacheField& field : bench.call->caches) {
            smla_cache& cache = *field.cache;
            const smla::Format& format = *smla::find_format(cache.format);
            const auto refuse = [&](auto& place, auto value, const char* name) {
                using T = std::remove_reference_t<decltype(place)>;
                const With<T> wrong(place, T(value));
                bench.expect_refused(field.name + name);
            };
            for (const smla_format id : {-1, 99, 31, 32}) refuse(cache.format, id, ".format");
            if (field.name != "args.primary.cache" && field.name != "args.extra.cache")
                refuse(cache.format, SMLA_FORMAT_NONE, ".format");
            if (cache.width) refuse(cache.width, 0, ".width");
            for (const int32_t width : {-1, 1 << 20}) refuse(cache.width, width, ".width");
            for (const int32_t tokens : {0, -1, INT32_MIN}) refuse(cache.page_tokens, tokens, ".page_tokens");
            for (const int32_t rows : {1, -1}) refuse(cache.page_rows, rows, ".page_rows");
            for (const int64_t pages : {int64_t(-1), INT64_MIN, INT64_MAX, int64_t(1) << 31})
                refuse(cache.pages, pages, ".pages");
            const int64_t packed = cache.page_stride_bytes - 128;
            for (const int64_t bytes : {int64_t(-1), int64_t(1), packed - 1, INT64_MAX})
                refuse(cache.page_stride_bytes, bytes, ".page_stride_bytes");
            for (const int64_t bytes : {int64_t(-1), int64_t(1), INT64_MAX})
                refuse(cache.row_stride_bytes, bytes, ".row_stride_bytes");
            const int32_t foreign = ~format.writers & (format.writers + 1);  // of other formats; 32: of none
            for (const int32_t writer : {foreign, 32}) refuse(cache.writer, writer, ".writer");
            refuse(cache.data, nullptr, ".data");
            if (format.alignment > 1) refuse(cache.data, static_cast<char*>(cache.data) + 1, ".data");
            refuse(cache.device_type, SMLA_CUDA, ".device");
            if (format.scale == smla::ScaleKind::per_tensor)
                for (const float scale : {0.f, -1.f, NAN, INFINITY}) refuse(cache.scale, scale, ".scale");
            else
                for (const float scale : {0.5f, -1.f, NAN}) refuse(cache.scale, scale, ".scale");
        }
    });
}

CONTRACT_TEST(L9d_EveryUnknownChoiceReservedFieldAndImpossibleNumberIsRefusedByName) {
    on_every_call([](Bench& bench) {
        for (ChoiceField& field : bench.call->choices)
            for (const int64_t value :
                 {int64_t(field.low) - 1, int64_t(field.high) + 1, int64_t(INT32_MIN)}) {
                if (value > INT32_MAX || value >= field.low) continue;
                const With<int32_t> wrong(*field.value, int32_t(value));
                bench.expect_refused(field.name);
            }
        for (ChoiceField& field : bench.call->choices)
            if (field.high < INT32_MAX)
                for (const int32_t value : {field.high + 1, INT32_MAX}) {
                    const With<int32_t> wrong(*field.value, value);
                    bench.expect_refused(field.name);
                }
        for (PositiveField& field : bench.call->positives)
            for (const double value : {0., -1., double(NAN), double(INFINITY), 1e-300, 1e300}) {
                if (value == 0 && field.zero_is_default) continue;
                const With<double> wrong(*field.value, value);
                bench.expect_refused(field.name);
            }
    });
}

CONTRACT_TEST(L9e_StructSizesContextsAndWorkspacesAreChecked) {
    on_every_call([](Bench& bench) {
        uint32_t& size = *bench.call->struct_size();
        for (const uint32_t wrong_size : {0u, 3u, 4u, 65537u, UINT32_MAX}) {
            const With<uint32_t> wrong(size, wrong_size);
            bench.expect_refused("args.struct_size");
        }
        for (const auto& [field, nested, right] : bench.call->nested_struct_sizes()) {
            for (const size_t wrong_size : {right - 8, right + 8, size_t(4)}) {
                const With<uint32_t> wrong(*nested, uint32_t(wrong_size));
                bench.expect_refused(field);
            }
            *nested = uint32_t(right);  // 0 so far
        }
        Call& call = *bench.call;
        std::vector<char> larger(size + 64, 0);  // of a newer header
        std::memcpy(larger.data(), call.args(), size);
        const uint32_t grown = size + 64;
        std::memcpy(larger.data(), &grown, sizeof grown);
        larger[grown - 1] = 1;
        EXPECT_TRUE(refused(call.run_with(bench.context, larger.data(), bench.scratch.get()),
                            SMLA_INVALID_ARGUMENT, "args.struct_size"));
        EXPECT_TRUE(refused(call.run_with(bench.context, nullptr, bench.scratch.get()), SMLA_INVALID_ARGUMENT,
                            "args"));
        EXPECT_TRUE(refused(call.run(nullptr, bench.scratch.get()), SMLA_INVALID_ARGUMENT, "context"));
        smla_workspace workspace = bench.scratch.get();
        workspace.data = bench.scratch.data() + 8;
        EXPECT_TRUE(refused(call.run(bench.context, workspace), SMLA_INVALID_ARGUMENT, "workspace.data"));
        workspace.data = nullptr;
        EXPECT_TRUE(refused(call.run(bench.context, workspace), SMLA_INVALID_ARGUMENT, "workspace.data"));
        EXPECT_TRUE(call.memory.nothing_changed());
        larger[grown - 1] = 0;  // what this library does not know is zero: it runs
        EXPECT_TRUE(succeeded(call.run_with(bench.context, larger.data(), bench.scratch.get())));
        EXPECT_FALSE(call.memory.nothing_changed());
    });
}

CONTRACT_TEST(L9n_AWrongVariableOfTheEnvironmentIsRefusedByName) {
    for (const Engine& engine : engines())
        for (const auto& [name, value] : {std::pair{"SMLA_THREADS", "x"},
                                          {"SMLA_THREADS", "4097"},
                                          {"SMLA_LOG", "3"},
                                          {"SMLA_STEP_GRAPHS", "on"},
                                          {"SMLA_KERNEL", "attend=none"}}) {
            smla_context_args args = smla::kit::context_args(engine.engine);
            smla_context* context = nullptr;
            setenv(name, value, 1);
            const smla_status status = smla_context_create(&args, &context);
            unsetenv(name);
            EXPECT_TRUE(refused(status, SMLA_INVALID_ARGUMENT, name));
            EXPECT_EQ(context, nullptr);
        }
}

CONTRACT_TEST(L9o_AVariableThatAnArgumentOverridesIsNotRead) {
    using smla::kit::context_args;
    const smla_context_args open = context_args(SMLA_ENGINE_AUTO);
    smla_context_args isa = open, kernel = open;
    isa.isa = SMLA_ISA_SCALAR;
    kernel.kernel = "norm=cpu_generic_norm";
    for (const auto& [name, args] : {std::pair{"SMLA_THREADS", context_args(SMLA_ENGINE_AUTO, 1)},
                                     {"SMLA_ENGINE", context_args(SMLA_ENGINE_REFERENCE)},
                                     {"SMLA_ISA", isa},
                                     {"SMLA_KERNEL", kernel}}) {
        smla_context* context = nullptr;
        setenv(name, "x", 1);
        EXPECT_TRUE(refused(smla_context_create(&open, &context), SMLA_INVALID_ARGUMENT, name));
        EXPECT_TRUE(succeeded(smla_context_create(&args, &context))) << name;
        unsetenv(name);
        smla_context_destroy(context);
    }
}

CONTRACT_TEST(L9e_AWorkspaceHasRoomForItsHeaderAndAWordThatACallWrote) {
    for (const Engine& engine : first_and_last_engine()) {
        const Context context(engine);
        const Scratch scratch(context, kHeader);
        for (const size_t bytes : {size_t(0), size_t(100), kHeader - 1}) {
            EXPECT_TRUE(refused(smla_workspace_init(context, {scratch.data(), bytes}, nullptr),
                                SMLA_WORKSPACE_TOO_SMALL, "workspace.bytes"));
            EXPECT_EQ(std::string(last_error().got), std::to_string(bytes));
            EXPECT_EQ(
                std::string(last_error().wanted).rfind(smla::text("at least ", kHeader, " (the counters"), 0),
                0u);
        }
        smla_error_word word{};
        EXPECT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
        EXPECT_EQ(word.kind, SMLA_BAD_NONE);
        const auto put = [&](const smla_error_word& as) {
            void* const place = scratch.data() + kHeader - 64;
            EXPECT_TRUE(succeeded(smla_upload(context, place, &as, sizeof as, nullptr)));
        };
        const smla_error_word garbage[] = {{-1, SMLA_STAGE_ATTEND, 0, 0, 0},
                                           {SMLA_BAD_CANDIDATE + 1, SMLA_STAGE_ATTEND, 0, 0, 0},
                                           {SMLA_BAD_ROW, -1, 0, 0, 0},
                                           {SMLA_BAD_ROW, SMLA_STAGE_COUNT, 0, 0, 0},
                                           {SMLA_BAD_NONE, SMLA_STAGE_ATTEND, 0, 0, 0},
                                           {SMLA_BAD_NONE, 0, 0, 0, 7}};
        for (const smla_error_word& each : garbage) {
            put(each);
            EXPECT_TRUE(refused(smla_read_error(context, scratch.get(), nullptr, &word),
                                SMLA_INVALID_ARGUMENT, "workspace.data"));
        }
        put({SMLA_BAD_CANDIDATE, SMLA_STAGE_SCORE_SELECT_BLOCKS, 3, -1, 5});
        EXPECT_TRUE(succeeded(smla_read_error(context, scratch.get(), nullptr, &word)));
        EXPECT_EQ(word.value, 5);
    }
}

CONTRACT_TEST(L9l_AnOutputInMemoryOfSomethingElseIsRefused) {
    CONTRACT_SKIP_ON_GPU("every tensor is copied to memory of its own");
    on_every_call([](Bench& bench) {
        for (TensorField& field : bench.call->tensors) {
            if (!bench.call->is_output(field) && !bench.call->is_in_place(field)) continue;
            for (const TensorField& other : bench.call->tensors) {
                const smla_tensor &out = *field.tensor, &there = *other.tensor;
                const bool in_place =
                    !bench.call->is_output(other) && there.dtype == out.dtype &&
                    !std::memcmp(there.stride_elems, out.stride_elems, sizeof out.stride_elems);
                if (&there == &out || in_place) continue;
                const With<void*> wrong(field.tensor->data, other.tensor->data);
                bench.expect_shared_somewhere(field.name, other.name);
            }
            for (const CacheField& other : bench.call->caches) {
                const With<void*> wrong(field.tensor->data, other.cache->data);
                // An output that is larger than the cache reaches into what happens to lie behind it.
                if (smla::span_bytes(*field.tensor) <= smla::touched_bytes(*other.cache))
                    bench.expect_shared(field.name, other.name);
                else bench.expect_shared_with_something(field.name + " in " + other.name);
            }
            const With<void*> wrong(field.tensor->data, bench.scratch.data());
            if (smla::span_bytes(*field.tensor) <= bench.scratch.get().bytes)
                bench.expect_shared(field.name, "the workspace");
            else bench.expect_shared_with_something(field.name + " in the workspace");
        }
    });
}

CONTRACT_TEST(L9l_ACacheThatIsWrittenInMemoryOfSomethingElseIsRefused) {
    CONTRACT_SKIP_ON_GPU("every cache is copied to memory of its own");
    on_every_call([](Bench& bench) {
        for (CacheField& field : bench.call->caches) {
            if (!field.field->is_written) continue;
            for (TensorField& other : bench.call->tensors) {
                const With<void*> wrong(other.tensor->data, field.cache->data);
                bench.expect_shared_somewhere(field.name, other.name);
            }
            for (const CacheField& other : bench.call->caches) {
                if (other.cache == field.cache) continue;
                const With<void*> wrong(field.cache->data, other.cache->data);
                bench.expect_shared(field.name, other.name);
            }
            const With<void*> wrong(field.cache->data, bench.scratch.data());
            bench.expect_shared(field.name, "the workspace");
        }
    });
}

CONTRACT_TEST(L9f_AKernelThatCannotRunTheCallIsNeverTried) {
    Engine engine = engines().back();
    if (!on_gpu()) engine.isa = SMLA_ISA_SCALAR;
    Bench bench(attend_calls().front(), engine);
    // The kernel for Hopper supports more than 32 heads; the others need a stronger instruction set.
#if defined(__aarch64__)
    const char* const vectors = "attend=cpu_neon_f32_attend";
#else
    const char* const vectors = "attend=cpu_avx2_f32_attend";
#endif
    const Context demanding(engine, {.kernel = on_gpu() ? "attend=cuda_sm90_attend" : vectors});
    EXPECT_TRUE(refused(bench.call->run(demanding, bench.scratch.get()), SMLA_UNSUPPORTED, "attend"));
    EXPECT_TRUE(bench.call->memory.nothing_changed());
    const Context able(engine,
                       {.kernel = on_gpu() ? "attend=cuda_mma_attend" : "attend=cpu_scalar_f32_attend"});
    EXPECT_TRUE(succeeded(bench.call->run(able, bench.scratch.get())));
}

}  // namespace
}  // namespace contract
