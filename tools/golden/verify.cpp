#include "golden/verify.h"

#include "core/cpu_features.h"

#include <algorithm>
#include <cmath>

namespace smla::golden {

namespace {

// Quantised caches, with the file's own selection: an engine against the reference on the same cache bytes
// and rows, in f32 arithmetic and in bf16; and the reference on that cache against the file, where the error
// that the format must leave is predicted (predicted_rounding_error).
constexpr double kSameCacheF32 = 5e-5, kSameCacheBf16L2 = 1e-2;
// Quantized index keys may change a few selected rows, the same ones on every engine. Of fewer than
// kManyPicks rows they may change any share.
constexpr double kOverlap = 0.97, kOverlapFp8 = 0.97, kOverlapFp4 = 0.85;
constexpr int64_t kManyPicks = 8;
constexpr double kChunkedY = 2e-5;  // chunks compared with the whole sequence, in f32

std::string format_name(smla_format id) { return find_format(id)->name; }

class Verifier {
public:
    Verifier(const Golden& golden, const VerifyOptions& options, const Report& report)
        : golden_(golden), options_(options), report_(report) {
        if (wants(SMLA_ENGINE_CPU)) fast_.push_back(SMLA_ENGINE_CPU);
        const bool named = options.engine == SMLA_ENGINE_CUDA;
        if (named || (wants(SMLA_ENGINE_CUDA) && why_no_engine(SMLA_ENGINE_CUDA).empty()))
            fast_.push_back(SMLA_ENGINE_CUDA);
    }

    void run() {
        if (wants(SMLA_ENGINE_REFERENCE)) {
            reference_f64();
            plain(SMLA_ENGINE_REFERENCE, SMLA_ROW_F32);
            plain(SMLA_ENGINE_REFERENCE, SMLA_ROW_BF16);
        }
        for (const smla_engine engine : fast_) {
            plain(engine, SMLA_ROW_F32);
            plain(engine, SMLA_ROW_BF16);
            chunked(engine);
        }
        for (const smla_format id :
             {SMLA_FP8_656, SMLA_FP8_584, SMLA_FP8_576, SMLA_FP8_512, SMLA_FP8_528, SMLA_FP8_528_G32,
              SMLA_FP8_528_G32_SPLIT, SMLA_NVFP4_288, SMLA_NVFP4_288_SPLIT, SMLA_NVFP4_384, SMLA_NVFP4_352})
            records(id);
        for (const smla_format id : {SMLA_INDEX_FP8_132, SMLA_INDEX_MXFP4_68}) index_keys(id);
    }

private:
    bool wants(smla_engine engine) const {
        return options_.engine == SMLA_ENGINE_AUTO || options_.engine == engine;
    }

    Context context(smla_engine engine) const {
        smla_context_args args{};
        args.struct_size = sizeof args;
        args.version = SMLA_VERSION;
        args.engine = engine;
        args.threads = options_.threads;
        args.batch_invariant = options_.batch_invariant;
        if (engine == SMLA_ENGINE_CPU) args.isa = options_.isa;
        args.device_index = options_.device;
        if (engine != SMLA_ENGINE_REFERENCE && !options_.kernel.empty())
            args.kernel = options_.kernel.c_str();
        return Context(args);
    }

    Combination combination(const Context& on, const RunOptions& run, std::string how) const {
        Combination out;
        out.golden = golden_.name;
        out.engine = on.engine() == SMLA_ENGINE_REFERENCE
                         ? text("reference ", run.precision.activations == SMLA_F64 ? "f64" : "f32")
                         : on.description().substr(0, on.description().find(','));
        out.kv_format = format_name(run.caches.kv);
        out.index_format = golden_.layers[0].config.indexer ? format_name(run.caches.index) : "";
        out.how = std::move(how);
        return out;
    }

    RunOptions run_options(smla_format kv, smla_format index) const {
        RunOptions run;
        run.caches.kv = kv;
        run.caches.index = index;
        run.caches.kv_scale = 1;  // normed latents are far below 448
        if (!golden_.page_sizes.empty()) run.caches.page_tokens = golden_.page_sizes[0];
        return run;
    }

    // --kernel does not apply to the reference: its runs do not test a kernel.
    void note_kernels(const Context& on, Combination& out, const std::vector<LayerResult>& results) const {
        const auto name = [](const LayerResult& layer, size_t stage) {
            const char* kernel = layer.records[stage].kernel;
            return std::string(kernel ? kernel : "");
        };
        out.kernel = name(results[0], size_t(Stage::attend));
        if (options_.kernel.empty()) return;
        const Env env = on.env({});
        out.as_demanded = on.engine() != SMLA_ENGINE_REFERENCE;
        for (size_t stage = 0; stage < size_t(kStageCount); ++stage)
            if (!env.demanded[stage].empty())
                out.as_demanded &= std::any_of(results.begin(), results.end(), [&](const LayerResult& layer) {
                    return name(layer, stage) == env.demanded[stage];
                });
    }
    static void append(std::vector<Checked>& to, const std::vector<Checked>& from) {
        to.insert(to.end(), from.begin(), from.end());
    }

    template <class Body>
    void attempt(smla_engine engine, const RunOptions& run, const std::string& how, Body&& body) {
        Context on = context(engine);
        Combination out = combination(on, run, how);
        try {
            body(on, out);
        } catch (const Error& error) {
            if (error.status != SMLA_UNSUPPORTED) throw;
            out.skipped = error.wanted + " (" + error.got + ")";
        }
        report_(out);
    }

    // Compares every intermediate of the layer that the file has.
    void check_more(Context& on, Combination& out, size_t layer, const LayerResult& result,
                    smla_dtype dtype) const {
        append(out.checked, check_intermediates(golden_, layer, result, golden_.tolerance.f32_intermediate));
        append(out.checked, check_steps(golden_, layer, result));
        append(out.checked, check_rope_tables(on, golden_, layer, dtype));
    }

    void reference_f64() {
        RunOptions run = run_options(SMLA_ROW_F64, SMLA_ROW_F64);
        run.precision.activations = run.precision.queries = SMLA_F64;
        attempt(SMLA_ENGINE_REFERENCE, run, "whole", [&](Context& on, Combination& out) {
            const auto results = run_golden(on, golden_, run);
            note_kernels(on, out, results);
            for (size_t i = 0; i < results.size(); ++i) {
                append(out.checked, check_y(golden_, i, results[i], Arithmetic::f64));
                check_more(on, out, i, results[i], SMLA_F64);
            }
        });
    }

    // row_f32: everything in f32. row_bf16: cache and queries in bf16, as models are served.
    void plain(smla_engine engine, smla_format format) {
        RunOptions run = run_options(format, format);
        const bool bf16 = format == SMLA_ROW_BF16;
        if (bf16) run.precision.queries = SMLA_BF16;
        attempt(engine, run, "whole", [&](Context& on, Combination& out) {
            const auto results = run_golden(on, golden_, run);
            note_kernels(on, out, results);
            for (size_t i = 0; i < results.size(); ++i) {
                append(out.checked,
                       check_y(golden_, i, results[i], bf16 ? Arithmetic::bf16 : Arithmetic::f32));
                if (!bf16) check_more(on, out, i, results[i], SMLA_F32);
            }
        });
    }

    void chunked(smla_engine engine) {
        const RunOptions whole_run = run_options(SMLA_ROW_F32, SMLA_ROW_F32);
        for (size_t plan = 0; plan < golden_.chunk_plans.size(); ++plan) {
            RunOptions run = whole_run;
            run.chunks = golden_.chunk_plans[plan];
            run.page_seed = 2 + plan;
            if (!golden_.page_sizes.empty())
                run.caches.page_tokens = golden_.page_sizes[plan % golden_.page_sizes.size()];
            std::string how = "chunks";
            for (size_t i = 0; i < run.chunks.size() && i < 4; ++i) how += text(i ? "," : " ", run.chunks[i]);
            if (run.chunks.size() > 4) how += ",...";
            attempt(engine, run, how, [&](Context& on, Combination& out) {
                const auto whole = run_golden(on, golden_, whole_run), results = run_golden(on, golden_, run);
                note_kernels(on, out, results);
                for (size_t i = 0; i < results.size(); ++i) {
                    const std::string suffix = golden_.layers[i].suffix;
                    append(out.checked, check_y(golden_, i, results[i], Arithmetic::f32));
                    append(out.checked, check_steps(golden_, i, results[i]));
                    out.checked.push_back(
                        {"y of the whole" + suffix, compare(results[i].y, whole[i].y).max, kChunkedY, "max"});
                    if (results[i].seen.count("topk"))
                        out.checked.push_back(
                            {"topk of the whole" + suffix,
                             compare(results[i].seen.at("topk").values, whole[i].seen.at("topk").values).max,
                             0, "set"});
                }
            });
        }
    }

    // Whether every layer has these formats. If one lacks them, reports one skipped combination for all
    // engines.
    bool fits(smla_format kv, smla_format index) {
        const RunOptions run = run_options(kv, index);
        try {
            for (const GoldenLayer& layer : golden_.layers)
                cache_needs(layer.config, layer.index, run.caches);
        } catch (const Error& error) {
            if (error.status != SMLA_UNSUPPORTED) throw;
            Combination out;
            out.golden = golden_.name;
            out.engine = "any";
            out.kv_format = format_name(kv);
            out.index_format = golden_.layers[0].config.indexer ? format_name(index) : "";
            out.skipped = error.wanted;
            report_(out);
            return false;
        }
        return true;
    }

    void records(smla_format format) {
        if (!fits(format, SMLA_ROW_F32)) return;
        RunOptions run = run_options(format, SMLA_ROW_F32);
        run.force_topk = true;
        run.intermediates = false;
        for (const smla_engine engine : fast_)
            for (const smla_dtype queries : {SMLA_F32, SMLA_BF16}) {
                run.precision.queries = queries;
                same_cache(engine, run, queries == SMLA_BF16);
            }
        if (!wants(SMLA_ENGINE_REFERENCE)) return;
        run.precision.activations = run.precision.queries = SMLA_F64;
        run.caches.index = SMLA_ROW_F64;
        attempt(SMLA_ENGINE_REFERENCE, run, "forced topk", [&](Context& on, Combination& out) {
            std::vector<double> predicted;
            RunOptions watched = run;
            watched.on_attend = [&](const smla_attend_args& args) {
                predicted.push_back(predicted_rounding_error(args));
            };
            const auto results = run_golden(on, golden_, watched);
            note_kernels(on, out, results);
            for (size_t i = 0; i < results.size(); ++i) {
                Checked y = check_y(golden_, i, results[i], Arithmetic::bf16)[0];
                y.tolerance = kOverPrediction * predicted[i];
                out.checked.push_back(y);
            }
        });
    }

    void same_cache(smla_engine engine, RunOptions run, bool bf16) {
        attempt(engine, run, bf16 ? "same cache, bf16 queries" : "same cache, f32 queries",
                [&](Context& on, Combination& out) {
                    Checked core{"attend", 0, bf16 ? kSameCacheBf16L2 : kSameCacheF32, bf16 ? "l2" : "max"};
                    run.on_attend = [&](const smla_attend_args& args) {
                        const Difference d = recheck_attend(args);
                        core.error = std::max(core.error, bf16 ? d.l2 : d.max);
                    };
                    note_kernels(on, out, run_golden(on, golden_, run));
                    out.checked.push_back(core);
                });
    }

    void index_keys(smla_format format) {
        const bool listed =
            std::any_of(golden_.layers.begin(), golden_.layers.end(), [&](const GoldenLayer& layer) {
                return layer.config.indexer && golden_.has("mid.topk" + layer.suffix);
            });
        if (!listed || fast_.empty()) return;
        if (!fits(SMLA_ROW_F32, format)) return;
        for (const smla_engine engine : fast_) own_topk(engine, format);
    }

    void own_topk(smla_engine engine, smla_format format) {
        const RunOptions run = run_options(SMLA_ROW_F32, format);
        attempt(engine, run, "own topk", [&](Context& on, Combination& out) {
            const auto results = run_golden(on, golden_, run);
            note_kernels(on, out, results);
            Context reference = context(SMLA_ENGINE_REFERENCE);
            const auto exact = run_golden(reference, golden_, run);
            const double limit = format == SMLA_INDEX_FP8_132 ? kOverlapFp8 : kOverlapFp4;
            for (size_t i = 0; i < results.size(); ++i) {
                const std::string suffix = golden_.layers[i].suffix, name = "mid.topk" + suffix;
                if (!results[i].seen.count("topk")) continue;
                out.checked.push_back({"topk of the reference" + suffix,
                                       1 - topk_overlap(exact[i].seen.at("topk"), results[i]), 1 - kOverlap,
                                       "1 - overlap"});
                if (golden_.has(name) && golden_.shape(name).back() >= kManyPicks)
                    out.checked.push_back(
                        {name, 1 - topk_overlap(golden_, i, results[i]), 1 - limit, "1 - overlap"});
            }
        });
    }

    const Golden& golden_;
    const VerifyOptions& options_;
    const Report& report_;
    std::vector<smla_engine> fast_;  // all but the reference
};

double severity(const Checked& check) {
    if (std::isnan(check.error)) return INFINITY;
    return check.tolerance > 0 ? check.error / check.tolerance : check.error > 0 ? INFINITY : 0;
}

}  // namespace

bool Combination::pass() const {
    bool good = !checked.empty();
    for (const Checked& check : checked) good = good && check.pass();
    return good;
}

const Checked* Combination::worst() const {
    const Checked* out = nullptr;
    for (const Checked& check : checked)
        if (!out || severity(check) > severity(*out)) out = &check;
    return out;
}

void verify_golden(const Golden& golden, const VerifyOptions& options, const Report& report) {
    Verifier(golden, options, report).run();
}

}  // namespace smla::golden
