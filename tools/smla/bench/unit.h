// Arithmetic units of processors and GPUs, their measured rates, and which of them a kernel uses.
#pragma once

#include "engines/context.h"

#include <span>
#include <string>

namespace smla::cli {

struct Unit {
    const char* name;
    smla_device_type device;
    smla_isa isa;        // of a CPU's context, at least
    double (*gflops)();  // of one thread or of the whole GPU, measured now; 0: not on this machine
    bool bf16 = true;    // multiplies bf16
};
std::span<const Unit> units();
// Operations per second of all threads of a context, or of its GPU, measured now. 0: not here.
double peak_of(const Unit& unit, Context& context);
// The unit of a kernel whose products have operands of this dtype; null for kernels of plain loops.
const Unit* unit_of(const std::string& kernel, smla_dtype operands, Context& context);

}  // namespace smla::cli
