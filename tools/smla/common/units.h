// Numbers for people.
#pragma once

#include <cstdint>
#include <string>

namespace smla::cli {

std::string bytes_text(double bytes);      // "656 B", "46.9 KiB", "5.87 GiB"
std::string count_text(double count);      // "2.5 G": powers of 1000
std::string seconds_text(double seconds);  // "12.3 ms", "1 m 04 s"
std::string number_text(double number);    // at most 5 significant digits, whole numbers whole

}  // namespace smla::cli
