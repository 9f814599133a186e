#include "units.h"

#include <fmt/format.h>

#include <cmath>

namespace smla::cli {

namespace {

std::string scaled(double value, double step, const char* const* units, int count, const char* none) {
    int unit = 0;
    while (unit + 1 < count && std::fabs(value) >= step * 0.9995) {
        value /= step;
        ++unit;
    }
    if (unit == 0 && value == std::floor(value)) return fmt::format("{:.0f}{}", value, none);
    const double size = std::fabs(value);
    return fmt::format("{:.{}f} {}", value, size < 9.995 ? 2 : size < 99.95 ? 1 : 0, units[unit]);
}

}  // namespace

std::string bytes_text(double bytes) {
    static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    return scaled(bytes, 1024, units, 6, " B");
}

std::string count_text(double count) {
    static constexpr const char* units[] = {"", "k", "M", "G", "T", "P"};
    return scaled(count, 1000, units, 6, "");
}

std::string seconds_text(double seconds) {
    if (seconds < 0.9995e-6) return fmt::format("{:.3g} ns", seconds * 1e9);
    if (seconds < 0.9995e-3) return fmt::format("{:.3g} us", seconds * 1e6);
    if (seconds < 0.9995) return fmt::format("{:.3g} ms", seconds * 1e3);
    if (seconds < 59.5) return fmt::format("{:.3g} s", seconds);
    const int64_t whole = std::llround(seconds);
    if (whole < 3600) return fmt::format("{} m {:02} s", whole / 60, whole % 60);
    return fmt::format("{} h {:02} m", whole / 3600, whole / 60 % 60);
}

std::string number_text(double number) {
    if (number == std::floor(number) && std::fabs(number) < 1e15) return fmt::format("{:.0f}", number);
    return fmt::format("{:.5g}", number);
}

}  // namespace smla::cli
