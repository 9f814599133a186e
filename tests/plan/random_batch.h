// Random steps for plans, and steps that no server should send.
#pragma once

#include "batch.h"

#include <random>

namespace smla::test {

class Dice {
public:
    explicit Dice(uint32_t seed) : engine_(seed) {}
    int32_t in(int32_t low, int32_t high) {
        return std::uniform_int_distribution<int32_t>(low, high)(engine_);
    }
    bool one_in(int32_t n) { return in(1, n) == 1; }

private:
    std::mt19937 engine_;
};

PlanMaxima random_maxima(Dice& dice);
Batch random_batch(Dice& dice, const PlanMaxima& maxima);
// Numbers of any size in every array, and lists that end too soon: what only a GPU's build takes. `tokens` is
// set.
Batch hostile_batch(Dice& dice, const PlanMaxima& maxima);

}  // namespace smla::test
