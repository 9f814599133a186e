#include "names.h"

#include "backends/registry.h"
#include "core/tensor.h"
#include "formats/format.h"

#include <CLI/CLI.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
#include <set>
#include <span>

namespace smla::cli {

std::string version_text() {
    return text("smla ", SMLA_VERSION_MAJOR, ".", SMLA_VERSION_MINOR, ".", SMLA_VERSION_PATCH);
}

namespace {

// Edits between two words: insert, delete, replace, exchange of neighbours.
size_t edits(const std::string& a, const std::string& b) {
    std::vector<size_t> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
    std::iota(last.begin(), last.end(), size_t(0));
    for (size_t i = 1; i <= a.size(); ++i) {
        row[0] = i;
        for (size_t j = 1; j <= b.size(); ++j) {
            row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = std::min(row[j], before[j - 2] + 1);
        }
        before.swap(last);
        last.swap(row);
    }
    return last[b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& candidates) {
    std::string best;
    size_t best_edits = std::max<size_t>(1, word.size() / 3) + 1;
    for (const std::string& each : candidates) {
        const size_t count = edits(word, each);
        if (count >= best_edits) continue;
        best = each;
        best_edits = count;
    }
    const size_t first = word.find_first_not_of('-');
    if (!best.empty() || word.size() < 5 || first == std::string::npos) return best;
    for (const std::string& each :
         candidates)  // "--format" for "--kv-format", "score-sel" for "score_select"
        if (each.find(word.substr(first)) != std::string::npos) return each;
    return best;
}

std::string joined(const std::vector<std::string>& words, const char* separator) {
    std::string out;
    for (const std::string& each : words) out += (out.empty() ? "" : separator) + each;
    return out;
}

std::string suggestion(const std::string& word, const std::vector<std::string>& candidates) {
    const std::string near = nearest(word, candidates);
    return near.empty() ? "" : "; did you mean " + near + "?";
}

int parse_choice(const std::string& option, const std::string& value, const std::vector<std::string>& names) {
    const std::string wanted = lower_case(value);
    for (size_t i = 0; i < names.size(); ++i)
        if (lower_case(names[i]) == wanted) return int(i);
    fail(SMLA_INVALID_ARGUMENT, option, value, "one of " + joined(names) + suggestion(wanted, names));
}

smla_format parse_format(const std::string& option, const std::string& name) {
    if (const Format* format = find_format(lower_case(name))) return format->id;
    std::vector<std::string> names;
    for (const Format* format : all_formats()) names.emplace_back(format->name);
    parse_choice(option, name, names);  // throws
    return SMLA_FORMAT_NONE;
}

smla_dtype parse_dtype(const std::string& option, const std::string& name, uint32_t allowed) {
    std::vector<std::string> names;
    std::vector<smla_dtype> ids;
    for (smla_dtype dtype = SMLA_F64; dtype <= SMLA_I64; ++dtype) {
        if (!(allowed & dtype_bit(dtype))) continue;
        names.emplace_back(dtype_name(dtype));
        ids.push_back(dtype);
    }
    return ids[size_t(parse_choice(option, name, names))];
}

void check_cache_type(const std::string& option, const std::string& name) {
    std::set<std::string> known;
    for (const Backend* backend : all_backends())
        for (const CacheType& type : backend->cache_types) known.insert(type.name);
    if (!find_format(lower_case(name))) parse_choice(option, name, {known.begin(), known.end()});
}

Stage parse_stage(const std::string& option, const std::string& name) {
    return Stage(parse_choice(option, name, {kStageNames, kStageNames + kStageCount}));
}

CLI::Validator whole_number(int64_t low, int64_t high) {
    const std::string range = text(low, " to ", high);
    return CLI::Validator(
        [=](std::string& value) {
            int64_t number = 0;
            const char* end = value.data() + value.size();
            const auto [at, error] = std::from_chars(value.data(), end, number);
            if (error == std::errc() && at == end && number >= low && number <= high) return std::string();
            return "got " + value + ", wanted a whole number, " + range;
        },
        "");
}

namespace {

template <class Good>
CLI::Validator number(const Good& good, const std::string& wanted) {
    return CLI::Validator(
        [=](std::string& value) {
            double number = 0;
            const char* end = value.data() + value.size();
            const auto [at, error] = std::from_chars(value.data(), end, number);
            const bool fits = error == std::errc() && at == end && good(number);
            return fits ? std::string() : "got " + value + ", wanted " + wanted;
        },
        "");
}

struct Unit {
    const char* name;
    double size;
};
constexpr double kKi = 1024, kMi = kKi * kKi, kGi = kMi * kKi, kTi = kGi * kKi;
constexpr Unit kTokenUnits[] = {{"k", kKi}, {"m", kMi}};
constexpr Unit kMemoryUnits[] = {{"", kGi},   {"mib", kMi}, {"gib", kGi}, {"tib", kTi}, {"mi", kMi},
                                 {"gi", kGi}, {"ti", kTi},  {"m", kMi},   {"g", kGi},   {"t", kTi},
                                 {"mb", 1e6}, {"gb", 1e9},  {"tb", 1e12}};

// Splits "80GiB" into 80 and the size of its unit. Returns NaN if the text has another form.
std::pair<double, double> with_unit(const std::string& value, std::span<const Unit> units) {
    double number = 0;
    const char* end = value.data() + value.size();
    const auto [at, error] = std::from_chars(value.data(), end, number, std::chars_format::fixed);
    const std::string name = lower_case({at, end});
    for (const Unit& unit : units)
        if (error == std::errc() && name == unit.name) return {number, unit.size};
    return {std::nan(""), 1};
}

}  // namespace

CLI::Validator token_count(int64_t low, int64_t high) {
    return CLI::Validator(
        [=](std::string& value) {
            const auto [number, unit] = with_unit(value, kTokenUnits);
            const double count = number * unit;
            std::string plain = value;
            if (count == std::floor(count) && std::fabs(count) < 9e15) plain = text(int64_t(count));
            const std::string wrong = whole_number(low, high)(plain);
            if (wrong.empty()) value = plain;
            return wrong.empty() ? wrong
                                 : "got " + value +
                                       text(", wanted a whole number, ", low, " to ", high,
                                            ", or one with K or M, such as 128K");
        },
        "");
}

CLI::Validator memory_size(double high) {
    return CLI::Validator(
        [=](std::string& value) {
            const auto [number, unit] = with_unit(value, kMemoryUnits);
            const double gibibytes = number * unit / kGi;
            if (!(gibibytes > 0 && gibibytes <= high))
                return "got " + value +
                       text(", wanted a size such as 80GiB, at most ", high,
                            " GiB; units are MiB, GiB, TiB (or M, G, T), MB, GB, TB; no unit means GiB");
            value = fmt::format("{}", gibibytes);
            return std::string();
        },
        "");
}

CLI::Validator positive_number(double high, const std::string& unit) {
    return number([=](double n) { return n > 0 && n <= high; },
                  text("a number", unit.empty() ? "" : " of ", unit, " above 0, at most ", high));
}

CLI::Validator one_of(std::vector<std::string> names) {
    return CLI::Validator(
        [names = std::move(names)](std::string& value) -> std::string {
            try {
                value = names[size_t(parse_choice("", value, names))];
                return "";
            } catch (const Error& error) {
                return "got " + error.got + ", wanted " + error.wanted;
            }
        },
        "");
}

CLI::Validator number_from_0(double high, const std::string& unit) {
    return number([=](double n) { return n >= 0 && n <= high; },
                  text("a number", unit.empty() ? "" : " of ", unit, ", 0 to ", high));
}

CLI::Validator any_case() {
    return CLI::Validator(
        [](std::string& value) {
            value = lower_case(value);
            return std::string();
        },
        "");
}

}  // namespace smla::cli
