#include "names.h"

#include "backends/registry.h"
#include "core/tensor.h"
#include "formats/format.h"

#include <CLI/CLI.hpp>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <set>

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

int parse_choice(const std::string& option, const std::string& value, const std::vector<std::string>& names) {
    const auto found = std::find(names.begin(), names.end(), value);
    if (found != names.end()) return int(found - names.begin());
    const std::string near = nearest(value, names);
    fail(SMLA_INVALID_ARGUMENT, option, value,
         "one of " + joined(names) + (near.empty() ? "" : "; did you mean " + near + "?"));
}

smla_format parse_format(const std::string& option, const std::string& name) {
    if (const Format* format = find_format(name)) return format->id;
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
    if (!find_format(name)) parse_choice(option, name, {known.begin(), known.end()});
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

}  // namespace

CLI::Validator positive_number(double high) {
    return number([=](double n) { return n > 0 && n <= high; }, text("a number above 0, at most ", high));
}

CLI::Validator one_of(std::vector<std::string> names) {
    return CLI::Validator(
        [names = std::move(names)](std::string& value) -> std::string {
            try {
                parse_choice("", value, names);
                return "";
            } catch (const Error& error) {
                return "got " + error.got + ", wanted " + error.wanted;
            }
        },
        "");
}

CLI::Validator number_from_0(double high) {
    return number([=](double n) { return n >= 0 && n <= high; }, text("a number, 0 to ", high));
}

}  // namespace smla::cli
