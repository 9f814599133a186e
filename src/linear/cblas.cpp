#include "linear/cblas.h"

#include "core/library.h"
#include "core/library_threads.h"
#include "core/log.h"
#include "linear/cblas_room.h"

namespace smla {

namespace {

// Finds the functions of a library; some are optional.
void find_functions(Symbols& symbol, Cblas& out) {
    symbol(out.sgemm, "cblas_sgemm");
    Symbols optional = symbol;
    optional(out.core_name, "openblas_get_corename");
    optional(out.parallel, "openblas_get_parallel");
    optional(out.take_buffer, "blas_memory_alloc");
    optional(out.give_buffer, "blas_memory_free");
}

Cblas load() {
    const char* const named = std::getenv("SMLA_CBLAS");
    if (named && !*named) return {.why_none = "SMLA_CBLAS is empty"};
    if (std::string lacks = what_cblas_lacks(); !lacks.empty()) {
        log_line(LogLevel::warning, text("no CBLAS library is used, because ", lacks));
        return {.why_none = std::move(lacks)};
    }
    Cblas loaded;
    run_on_library_thread(kCblasThreads, [&] {
        loaded = load_library<Cblas>(
            "SMLA_CBLAS",
            {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3", "libmkl_rt.so.2"},
            find_functions);
        if (loaded.sgemm) start_threads_of(loaded);
        else loaded.why_none = "no CBLAS library was found";
    });
    return loaded;
}

}  // namespace

const Cblas& cblas() {
    static const Cblas library = [] {
        const CblasLoading loading;
        return load();
    }();
    return library;
}

}  // namespace smla
