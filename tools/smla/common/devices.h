// The value of --device: a product name such as H200, a compute capability such as sm_90, or cpu.
#pragma once

#include "backends/device.h"

#include <string>
#include <vector>

namespace smla::cli {

std::vector<std::string> device_products();  // "A100", ...
bool is_product(const std::string& name);
std::string products_of(const std::string& capability);  // "H100, H200, H20" for "sm_90"
// Parses a value in upper or lower case. Throws an error that names the option and lists the valid names.
DeviceInfo parse_device(const std::string& option, const std::string& name);

}  // namespace smla::cli
