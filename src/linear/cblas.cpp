#include "linear/cblas.h"

#include <dlfcn.h>

#include <cstdlib>

namespace smla {

namespace {

Cblas load() {
    const char* named = std::getenv("SMLA_CBLAS");
    const char* usual[] = {"libopenblas.so.0", "libopenblas.so", "libcblas.so.3", "libblas.so.3",
                           "libmkl_rt.so.2"};
    Cblas out;
    const auto attempt = [&](const char* name) {
        void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
        if (!library) return false;
        out.sgemm = reinterpret_cast<Cblas::Sgemm>(dlsym(library, "cblas_sgemm"));
        if (out.sgemm) out.library = name;
        return out.sgemm != nullptr;
    };
    if (named) {
        if (*named) attempt(named);  // empty: none, on purpose
        return out;
    }
    for (const char* name : usual)
        if (attempt(name)) break;
    return out;
}

}  // namespace

const Cblas& cblas() {
    static const Cblas library = load();
    return library;
}

}  // namespace smla
