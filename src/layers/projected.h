// Products of the same rows with several weights. Launches cost a GPU as much as small products do, so there
// weights of one input lie one behind the other, and one product serves them.
#pragma once

#include "backends/runner.h"
#include "model/weights.h"

#include <vector>

namespace smla {

inline Tensor as_matrix(const HostTensor& weight) {  // [N,K] as [1,N,K]
    return reshape(weight.view, {1, weight.view.shape[0], weight.view.shape[1]});
}

// Moves neighbours in `weights` that can be one matrix to one block of a GPU's memory. Others stay as they
// are: absent ones, those of the caller's GPU memory, and those of another dtype.
void place_side_by_side(const std::vector<HostTensor*>& weights, Device& device);

// The products of one input, by the weight that made them.
class Projected {
public:
    struct Product {
        const HostTensor* weight;  // [N,K]; may be absent
        smla_dtype dtype;          // of the result
    };
    // x: [T,1,K].
    Projected(Runner& run, const Tensor& x, const std::vector<Product>& products);
    Projected(Runner& run, const Tensor& x, const std::vector<const HostTensor*>& weights, smla_dtype dtype);

    // [T,1,N]; rows may be parts of longer ones.
    const Tensor& by(const HostTensor& weight) const;

private:
    struct Result {
        const HostTensor* weight;
        Tensor out;
    };
    std::vector<Result> results_;
};

}  // namespace smla
