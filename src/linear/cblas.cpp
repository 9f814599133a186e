#include "linear/cblas.h"

#include "core/library.h"

namespace smla {

const Cblas& cblas() {
    static const Cblas library = load_library<Cblas>(
        "SMLA_CBLAS",
        {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3", "libmkl_rt.so.2"},
        [](Symbols& symbol, Cblas& out) { symbol(out.sgemm, "cblas_sgemm"); });
    return library;
}

}  // namespace smla
