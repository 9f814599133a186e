// Reads the tensors of one layer under one naming scheme and collects errors.
#pragma once

#include "model/dequantise.h"
#include "model/findings.h"
#include "model/weights.h"

#include <initializer_list>
#include <string>
#include <vector>

namespace smla {

class WeightReader {
public:
    WeightReader(const Checkpoint& checkpoint, const AttentionConfig& config, int64_t layer,
                 const WeightOptions& options);

    // Returns the first of `names` (relative to `prefix`) in the checkpoint; reports the first name if there
    // is none.
    HostTensor matrix(const std::vector<std::string>& names, int64_t rows, int64_t columns);
    HostTensor vector(const std::vector<std::string>& names, int64_t n);  // [n] in f32 or f64
    HostTensor table(const std::vector<std::string>& names, int64_t rows,
                     int64_t columns);  // likewise [rows,columns]
    HostTensor logits(const std::vector<std::string>& names,
                      int64_t n);  // a vector that allows infinities
    HostTensor optional_vector(const std::vector<std::string>& names, int64_t n);

    bool has(const std::string& name) const { return checkpoint_.has(options_.prefix + name); }
    void throw_if_any() const { findings_.throw_if_any(); }

private:
    struct Dtypes {
        uint32_t allowed;
        const char* text;
    };
    static const Dtypes kPlain, kScale, kMatrix;

    HostTensor find(const std::vector<std::string>& names, std::initializer_list<int64_t> shape,
                    const Dtypes& dtypes, std::string& name);
    std::string field(const std::string& name) const;
    HostTensor plain(const std::vector<std::string>& names, std::initializer_list<int64_t> shape,
                     bool infinities = false);
    // Returns a tensor in `dtype` with checked values. A device tensor that already has this dtype is not
    // checked.
    HostTensor converted(const HostTensor& stored, smla_dtype dtype, const std::string& name,
                         bool infinities = false);
    HostTensor quantised(const HostTensor& stored, const std::string& name);
    std::string scale_name(const std::string& name) const;
    // Returns whether other tensors show that a matrix has an unsupported quantization, and reports that.
    bool packed(const std::string& name);
    void add_wrong(const std::string& field, const std::string& got, const std::string& wanted);
    // Returns `weight`, and reports its first NaN or infinity (with `infinities`: its first NaN).
    HostTensor checked(const HostTensor& weight, const std::string& name, bool infinities = false);

    const Checkpoint& checkpoint_;
    const WeightOptions& options_;
    BlockSize block_;
    smla_dtype vectors_;
    Findings findings_;
    bool readable_ = true;  // whether all tensors so far exist with their shapes; if not, values are not read
};

}  // namespace smla
