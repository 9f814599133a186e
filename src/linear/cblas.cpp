#include "linear/cblas.h"

#include "core/library.h"
#include "linear/cblas_room.h"

namespace smla {

namespace {

// A library that lacks the optional functions is used all the same.
void find_functions(Symbols& symbol, Cblas& out) {
    symbol(out.sgemm, "cblas_sgemm");
    Symbols optional = symbol;
    optional(out.core_name, "openblas_get_corename");
    optional(out.take_buffer, "blas_memory_alloc");
    optional(out.give_buffer, "blas_memory_free");
}

}  // namespace

const Cblas& cblas() {
    static const Cblas library = [] {
        const CblasLoading loading;
        const char* const named = std::getenv("SMLA_CBLAS");
        if (!named || *named) check_room_to_load_cblas();
        Cblas loaded = load_library<Cblas>(
            "SMLA_CBLAS",
            {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3", "libmkl_rt.so.2"},
            find_functions);
        if (loaded.sgemm) start_threads_of(loaded);
        return loaded;
    }();
    return library;
}

}  // namespace smla
