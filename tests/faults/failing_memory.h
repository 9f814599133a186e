// malloc and mmap of this program and of its libraries, of which the n-th call can be made to fail.
#pragma once

#include <cstdint>

namespace faults {

// Whose allocations: of all but OpenBLAS and the loader, which end the process where they get no memory; or
// of libsmla and the C++ library that it calls, and of nothing else in the process.
enum class Of { most, smla };
// The nth allocation from here on fails, and `more` after it; 0: none does.
void fail_allocation(int64_t nth, int64_t more = 0, Of whose = Of::most);
// How many were asked for since; none fails any more.
int64_t stop_failing();
// Blocks and mappings that are not freed.
int64_t live_blocks();

}  // namespace faults
