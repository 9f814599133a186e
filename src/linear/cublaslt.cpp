#include "linear/cublaslt.h"

#include "core/library.h"
#include "core/status.h"

namespace smla {

namespace {

void find(Symbols& symbol, CublasLt& out) {
    symbol(out.create, "cublasLtCreate");
    symbol(out.matmul, "cublasLtMatmul");
    symbol(out.operation_create, "cublasLtMatmulDescCreate");
    symbol(out.operation_destroy, "cublasLtMatmulDescDestroy");
    symbol(out.operation_set, "cublasLtMatmulDescSetAttribute");
    symbol(out.layout_create, "cublasLtMatrixLayoutCreate");
    symbol(out.layout_destroy, "cublasLtMatrixLayoutDestroy");
    symbol(out.layout_set, "cublasLtMatrixLayoutSetAttribute");
    symbol(out.preference_create, "cublasLtMatmulPreferenceCreate");
    symbol(out.preference_destroy, "cublasLtMatmulPreferenceDestroy");
    symbol(out.preference_set, "cublasLtMatmulPreferenceSetAttribute");
    symbol(out.heuristic, "cublasLtMatmulAlgoGetHeuristic");
}

// Constants of the cuBLASLt interface.
constexpr int kCompute32F = 68;                                     // no tf32
constexpr int kTransposeA = 3;                                      // cublasLtMatmulDescAttributes_t
constexpr int kBatchCount = 5, kBatchOffset = 6;                    // cublasLtMatrixLayoutAttribute_t
constexpr int kMaxWorkspace = 1, kReductions = 3, kAlignmentA = 5;  // cublasLtMatmulPreferenceAttributes_t
constexpr int kNoTranspose = 0, kTranspose = 1;                     // cublasOperation_t
// Split-K: partial sums are reduced in f32 in the workspace, never in the output's type or in place.
constexpr uint32_t kReduceInComputeType = 2;
constexpr int kAllocFailed = 3;  // cublasStatus_t

[[noreturn]] void no_memory(const char* call) {
    fail(SMLA_OUT_OF_MEMORY, call, text("status ", kAllocFailed), "enough memory");
}

// Runs calls until the first failure.
class Calls {
public:
    template <class Function, class... Given>
    Calls& call(const char* name, Function function, const Given&... given) {
        if (!failure_.empty()) return *this;
        const int status = function(given...);
        if (status != 0) failure_ = text("cuBLASLt: ", name, " returned status ", status);
        return *this;
    }
    const std::string& failure() const { return failure_; }

private:
    std::string failure_;
};

}  // namespace

const CublasLt& cublaslt() {
    static const CublasLt library = load_library<CublasLt>(
        "SMLA_CUBLASLT", {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"}, find);
    return library;
}

LtProduct::LtProduct(void* handle, const LtShape& shape) : handle_(handle) {
    refusal_ = handle ? describe(shape) : "cublasLtCreate failed";
    if (refusal_.empty()) refusal_ = choose(shape);
}

LtProduct::~LtProduct() {
    const CublasLt& lt = cublaslt();
    if (preference_) lt.preference_destroy(preference_);
    for (void* layout : {a_, b_, d_})
        if (layout) lt.layout_destroy(layout);
    if (operation_) lt.operation_destroy(operation_);
}

std::string LtProduct::describe(const LtShape& s) {
    const CublasLt& lt = cublaslt();
    const int32_t op = s.transposed ? kTranspose : kNoTranspose, batch = int32_t(s.batch);
    const int64_t rows = s.transposed ? s.k : s.m, columns = s.transposed ? s.m : s.k;
    Calls calls;
    calls.call("cublasLtMatmulDescCreate", lt.operation_create, &operation_, kCompute32F, int(LtType::f32))
        .call("cublasLtMatrixLayoutCreate", lt.layout_create, &a_, int(s.type), rows, columns, s.lead_a)
        .call("cublasLtMatrixLayoutCreate", lt.layout_create, &b_, int(s.type), s.k, s.n, s.lead_b)
        .call("cublasLtMatrixLayoutCreate", lt.layout_create, &d_, int(s.out_type), s.m, s.n, s.lead_d);
    if (!calls.failure().empty()) return calls.failure();
    calls.call("cublasLtMatmulDescSetAttribute", lt.operation_set, operation_, kTransposeA, &op, sizeof op);
    const struct {
        void* layout;
        const int64_t* step;
    } operands[] = {{a_, &s.step_a}, {b_, &s.step_b}, {d_, &s.step_d}};
    for (const auto& operand : operands)
        calls
            .call("cublasLtMatrixLayoutSetAttribute", lt.layout_set, operand.layout, kBatchCount, &batch,
                  sizeof batch)
            .call("cublasLtMatrixLayoutSetAttribute", lt.layout_set, operand.layout, kBatchOffset,
                  operand.step, sizeof *operand.step);
    return calls.failure();
}

std::string LtProduct::choose(const LtShape& s) {
    const CublasLt& lt = cublaslt();
    Calls calls;
    calls.call("cublasLtMatmulPreferenceCreate", lt.preference_create, &preference_);
    if (!calls.failure().empty()) return calls.failure();
    const auto set = [&](int attribute, const auto& value) {
        calls.call("cublasLtMatmulPreferenceSetAttribute", lt.preference_set, preference_, attribute, &value,
                   sizeof value);
    };
    set(kMaxWorkspace, uint64_t(s.workspace));
    set(kReductions, kReduceInComputeType);
    const uint32_t alignments[] = {uint32_t(s.align_a), uint32_t(s.align_b), uint32_t(s.align_d),
                                   uint32_t(s.align_d)};  // A, B, C, D
    for (int i = 0; i < 4; ++i) set(kAlignmentA + i, alignments[i]);
    if (!calls.failure().empty()) return calls.failure();
    int count = 0;
    const int status = lt.heuristic(handle_, operation_, a_, b_, d_, d_, preference_, 1, &algorithm_, &count);
    lacks_memory_ = status == kAllocFailed;
    if (status != 0 || count < 1 || algorithm_.status != 0)
        return text("cuBLASLt has no algorithm for this product (status ", status, ")");
    return "";
}

void LtProduct::run(const void* a, const void* b, void* d, void* workspace, void* stream) const {
    const float one = 1, zero = 0;
    const int status = cublaslt().matmul(handle_, operation_, &one, a, a_, b, b_, &zero, d, d_, d, d_,
                                         algorithm_.opaque, workspace, algorithm_.workspace_bytes, stream);
    if (status == kAllocFailed) no_memory("cublasLtMatmul");
    if (status != 0) fail(SMLA_DEVICE_ERROR, "cublasLtMatmul", text("status ", status), "success");
}

std::shared_ptr<const LtProduct> LtProducts::find(const LtShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto found = products_.find(shape);
    return found == products_.end() ? nullptr : found->second;
}

std::shared_ptr<const LtProduct> LtProducts::make(const LtShape& shape) {
    const std::lock_guard lock(mutex_);
    const auto found = products_.find(shape);
    if (found != products_.end()) return found->second;
    if (const int status = handle_ ? 0 : cublaslt().create(&handle_); status != 0) {
        handle_ = nullptr;
        // Throws, because otherwise a plan with another kernel would be kept, whose bits differ from later
        // results.
        if (status == kAllocFailed) no_memory("cublasLtCreate");
        return std::make_shared<const LtProduct>(handle_, shape);
    }
    constexpr size_t kMost = 4096;  // products of about 1 KB, whose sizes may keep changing
    if (products_.size() >= kMost) products_.clear();
    auto product = std::make_shared<const LtProduct>(handle_, shape);
    if (product->lacks_memory()) no_memory("cublasLtMatmulAlgoGetHeuristic");
    return products_[shape] = std::move(product);
}

LtProducts& lt_products(int32_t device_index) {
    // Never destroyed, because the driver may be unloaded before static objects are destroyed.
    static auto& all = *new std::map<int32_t, LtProducts>();
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    return all[device_index];
}

}  // namespace smla
