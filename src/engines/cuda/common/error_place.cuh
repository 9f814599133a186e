// How blocks that scan the lists of a call meet in its error word (engines/error_word.h): each keeps the
// lowest number of a bad item, by an atomic maximum of complements, so that zero means none and the result
// does not depend on the order of threads. The last block to arrive writes the word and zeroes the number. A
// word that nobody has read stays.
#pragma once

#include "engines/error_word.h"

#include <cstdint>

namespace smla::cuda {

constexpr unsigned kFound = 1u << 16;  // added to `arrived` by blocks that have found something

// For all threads of one of `blocks` blocks, fewer than kFound, with what each has found: `bad` is an item's
// number if `found`. The last block calls note(number) in one thread if there is a finding, with the lowest
// number of all. Every block has arrived by then, so all of them see the same word.
template <class Note>
__device__ void note_first(ErrorPlace* place, unsigned blocks, bool found, unsigned long long bad,
                           const Note& note) {
    found = found && place->word.kind == SMLA_BAD_NONE;
    if (found) atomicMax(&place->first, ~bad);
    const bool any = __syncthreads_or(found);
    if (threadIdx.x != 0 || (blocks == 1 && !any)) return;  // alone, a block need not ask for its turn
    if (any) __threadfence();                               // after this block's numbers
    const unsigned before = atomicAdd(&place->arrived, any ? kFound + 1 : 1);
    if (before % kFound != blocks - 1) return;
    place->arrived = 0;
    if (!any && before < kFound) return;
    __threadfence();  // before the other blocks' numbers are read
    note(~atomicExch(&place->first, 0));
}

}  // namespace smla::cuda
