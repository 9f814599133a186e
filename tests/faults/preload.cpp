// failing_memory for Python, by LD_PRELOAD.
#include "failing_memory.h"

extern "C" {

[[gnu::visibility("default")]] void smla_fail_allocation(int64_t nth, int64_t more) {
    faults::fail_allocation(nth, more, faults::Of::smla);
}
[[gnu::visibility("default")]] int64_t smla_stop_failing() { return faults::stop_failing(); }

}  // extern "C"
