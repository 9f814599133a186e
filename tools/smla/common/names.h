// Parses names from the command line. Errors list the valid names and suggest the nearest one.
#pragma once

#include "cli_forward.h"
#include "core/stage.h"

#include <smla/context.h>

#include <string>
#include <vector>

namespace smla::cli {

std::string version_text();  // "smla 0.1.0"

// The candidate that `word` is probably a misspelling of; empty: none is near.
std::string nearest(const std::string& word, const std::vector<std::string>& candidates);
// Returns "; did you mean NAME?" for a similar name, or "".
std::string suggestion(const std::string& word, const std::vector<std::string>& candidates);
// Returns the word with the letters A to Z in lower case.
inline std::string lower_case(std::string word) {
    for (char& c : word) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
    return word;
}
std::string joined(const std::vector<std::string>& words, const char* separator = ", ");

// Index of `value`, in upper or lower case, in `names`, else an error that names the option.
int parse_choice(const std::string& option, const std::string& value, const std::vector<std::string>& names);

// Parse names in upper or lower case.
smla_format parse_format(const std::string& option, const std::string& name);  // aliases too
smla_dtype parse_dtype(const std::string& option, const std::string& name, uint32_t allowed);
// Throws for a kv_cache_dtype that no attention backend has. Each backend rejects the types of others.
void check_cache_type(const std::string& option, const std::string& name);
Stage parse_stage(const std::string& option, const std::string& name);

// Checks an option's value: a whole number within [low, high].
CLI::Validator whole_number(int64_t low, int64_t high);
// Accepts a whole number that may end in K or M: 128K is 131072. The option gets the number.
CLI::Validator token_count(int64_t low, int64_t high);
// Accepts an amount of memory: 80GiB, 80GB, 512MiB, or a number of GiB. The option gets the number of GiB.
CLI::Validator memory_size(double high);
// A number above 0, at most `high`. `unit` names it in errors: "seconds".
CLI::Validator positive_number(double high, const std::string& unit = "");
// Accepts one of these names in upper or lower case. The option gets the name as it is listed.
CLI::Validator one_of(std::vector<std::string> names);
constexpr double kMostSeconds = 1e6;  // upper bound of options in seconds
// A number from 0 to `high`.
CLI::Validator number_from_0(double high, const std::string& unit = "");
// Accepts any text. The option gets it in lower case, as formats and dtypes are named.
CLI::Validator any_case();

}  // namespace smla::cli
