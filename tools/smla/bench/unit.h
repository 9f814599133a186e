// Arithmetic units of processors and GPUs, their measured rates, and the unit that a kernel uses.
#pragma once

#include "engines/context.h"

#include <span>
#include <string>

namespace smla::cli {

struct Unit {
    const char* name;
    smla_device_type device;
    smla_isa isa;        // minimum instruction set of a CPU context
    double (*gflops)();  // measures one thread or the whole GPU; 0 if this machine does not have the unit
    bool bf16 = true;    // whether it multiplies bf16
};
std::span<const Unit> units();
// Measures the operations per second of all threads of a context, or of its GPU; 0 if there is no such unit.
double peak_of(const Unit& unit, Context& context);
// Returns the unit of a kernel whose products have operands of this dtype; null for kernels of plain loops.
const Unit* unit_of(const std::string& kernel, smla_dtype operands, Context& context);

}  // namespace smla::cli
