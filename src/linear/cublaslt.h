// NVIDIA's cuBLASLt, loaded at run time: the library that SMLA_CUBLASLT names (empty: none), else one with a
// usual name. Builds need no header: the prototypes and values below are from the manual of its C interface
// (cuBLAS 13, "Using the cuBLASLt API"), unchanged since release 11.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace smla {

// cudaDataType_t
enum class LtType : int32_t { f32 = 0, f16 = 2, bf16 = 14 };

struct CublasLt {
    // cublasLtMatmulHeuristicResult_t
    struct Algorithm {
        uint64_t opaque[8];
        size_t workspace_bytes;
        int32_t status;
        float waves;
        int32_t reserved[4];
    };
    int (*create)(void** handle);
    int (*matmul)(void* handle, void* operation, const void* alpha, const void* a, void* layout_a,
                  const void* b, void* layout_b, const void* beta, const void* c, void* layout_c, void* d,
                  void* layout_d, const void* algorithm, void* workspace, size_t workspace_bytes,
                  void* stream);
    int (*operation_create)(void** operation, int compute_type, int scale_type);
    int (*operation_destroy)(void* operation);
    int (*operation_set)(void* operation, int attribute, const void* value, size_t bytes);
    int (*layout_create)(void** layout, int type, uint64_t rows, uint64_t columns, int64_t lead);
    int (*layout_destroy)(void* layout);
    int (*layout_set)(void* layout, int attribute, const void* value, size_t bytes);
    int (*preference_create)(void** preference);
    int (*preference_destroy)(void* preference);
    int (*preference_set)(void* preference, int attribute, const void* value, size_t bytes);
    int (*heuristic)(void* handle, void* operation, void* layout_a, void* layout_b, void* layout_c,
                     void* layout_d, void* preference, int asked, Algorithm* found, int* count);
    std::string library;  // name of the loaded library; empty: none
};
const CublasLt& cublaslt();

// A strided batch of products, column-major: D[m,n] = op(A) * B with B [k,n], summed in f32.
struct LtShape {
    LtType type = LtType::f32, out_type = LtType::f32;  // types of A and B, and of D
    bool transposed = false;                            // A is stored [k,m], else [m,k]
    int64_t m = 0, n = 0, k = 0, batch = 1;
    int64_t lead_a = 0, lead_b = 0, lead_d = 0, step_a = 0, step_b = 0, step_d = 0;  // elements
    int32_t align_a = 16, align_b = 16, align_d = 16;  // alignment of addresses in bytes
    size_t workspace = 0;                              // bytes at most
    auto operator<=>(const LtShape&) const = default;
};

// The descriptors and the algorithm of a shape.
class LtProduct {
public:
    LtProduct(void* handle, const LtShape& shape);
    ~LtProduct();
    LtProduct(const LtProduct&) = delete;
    LtProduct& operator=(const LtProduct&) = delete;

    const std::string& refusal() const { return refusal_; }  // reason if the library rejects the shape
    bool lacks_memory() const { return lacks_memory_; }      // a later attempt may succeed
    void run(const void* a, const void* b, void* d, void* workspace, void* stream) const;

private:
    std::string choose(const LtShape& shape);
    std::string describe(const LtShape& shape);

    void* handle_;
    void *operation_ = nullptr, *a_ = nullptr, *b_ = nullptr, *d_ = nullptr, *preference_ = nullptr;
    CublasLt::Algorithm algorithm_{};
    std::string refusal_;
    bool lacks_memory_ = false;
};

// Handle and products of one device, which must be the current device in every call.
class LtProducts {
public:
    // Returns null if there is no such product yet. Used while a stream is captured, because no product may
    // be made then.
    std::shared_ptr<const LtProduct> find(const LtShape& shape);
    std::shared_ptr<const LtProduct> make(const LtShape& shape);

private:
    std::mutex mutex_;
    void* handle_ = nullptr;
    std::map<LtShape, std::shared_ptr<const LtProduct>> products_;
};
LtProducts& lt_products(int32_t device_index);  // lives as long as the process

}  // namespace smla
