// Which consumer a block has.
#pragma once

#include "engines/cuda/attend/sm90/few/mma_consumer.cuh"
#include "engines/cuda/attend/sm90/few/wgmma_consumer.cuh"

#include <type_traits>

namespace smla::cuda_attend::sm90::few {

template <class Shape>
using ConsumerOf = std::conditional_t<Shape::heads == kFewHeads, MmaConsumer<Shape>, WgmmaConsumer<Shape>>;

}  // namespace smla::cuda_attend::sm90::few
