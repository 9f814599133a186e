// Products of the same rows with several weights. On a GPU, a launch takes as long as a small product, so
// weights with a common input are stored one after the other and multiplied in one product.
#pragma once

#include "backends/runner.h"
#include "model/weights.h"

#include <vector>

namespace smla {

inline Tensor as_matrix(const HostTensor& weight) {  // [N,K] as [1,N,K]
    return reshape(weight.view, {1, weight.view.shape[0], weight.view.shape[1]});
}

// Moves adjacent `weights` that can form one matrix into one block of GPU memory. Absent weights, weights in
// the caller's GPU memory and weights of another dtype stay in place.
void place_side_by_side(const std::vector<HostTensor*>& weights, Device& device);

// Products of one input, by weight.
class Projected {
public:
    struct Product {
        const HostTensor* weight;  // [N,K]; may be absent
        smla_dtype dtype;          // of the result
    };
    // x: [T,1,K].
    Projected(Runner& run, const Tensor& x, const std::vector<Product>& products);
    Projected(Runner& run, const Tensor& x, const std::vector<const HostTensor*>& weights, smla_dtype dtype);

    // Returns a product [T,1,N]; its rows may be parts of longer rows.
    const Tensor& by(const HostTensor& weight) const;

private:
    struct Result {
        const HostTensor* weight;
        Tensor out;
    };
    std::vector<Result> results_;
};

}  // namespace smla
