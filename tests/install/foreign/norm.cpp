// The installed library from C++: an RMS norm in place, and a refusal that names its field.
#include <smla/smla.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <memory>

namespace {

int failed(const char* what) {
    std::fprintf(stderr, "%s: %s\n", what, smla_last_error());
    return 1;
}

}  // namespace

int main() {
    smla_context_args create{};
    create.struct_size = sizeof create;
    create.version = SMLA_VERSION;
    smla_context* raw = nullptr;
    if (smla_context_create(&create, &raw) != SMLA_OK) return failed("smla_context_create");
    const std::unique_ptr<smla_context, void (*)(smla_context*)> context(raw, smla_context_destroy);

    float x[] = {3, -4, 0, 0};
    smla_norm_args args{};
    args.struct_size = sizeof args;
    args.kind = SMLA_NORM_RMS;
    args.eps = 1e-12;
    args.x = args.out = smla_dense(x, SMLA_F32, 3, 1, 1, 4, 0);
    if (smla_norm(context.get(), &args, {}, nullptr) != SMLA_OK) return failed("smla_norm");
    // mean(x^2) = 25/4, so out = x / 2.5, to a few f32 roundings
    if (!(std::fabs(x[0] - 1.2f) < 1e-6f) || !(std::fabs(x[1] + 1.6f) < 1e-6f)) return failed("wrong values");

    args.eps = -1;
    smla_error error{};
    if (smla_norm(context.get(), &args, {}, nullptr) != SMLA_INVALID_ARGUMENT)
        return failed("eps -1 was accepted");
    smla_last_error_info(&error);
    if (!std::strstr(error.field, "eps")) return failed("the refusal does not name eps");
    std::printf("norm ok; refusal: %s\n", error.message);
    return 0;
}
