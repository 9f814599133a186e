// Errors of library code: SMLA_CHECK and fail() throw Error. Only src/api catches errors and sets the status
// and the thread's last error.
#pragma once

#include <smla/types.h>

#include <exception>
#include <string>
#include <utility>

namespace smla {

class Error : public std::exception {
public:
    Error(smla_status status, std::string field, std::string got, std::string wanted);
    const char* what() const noexcept override { return message_.c_str(); }

    smla_status status;
    std::string field, got, wanted;

private:
    std::string message_;
};

[[noreturn]] inline void fail(smla_status status, std::string field, std::string got, std::string wanted) {
    throw Error(status, std::move(field), std::move(got), std::move(wanted));
}

// Returns one line of text from numbers and strings.
inline std::string text(std::string value) { return value; }
inline std::string text(const char* value) { return value ? value : "null"; }
std::string text(double value);
template <class Number>
requires std::is_integral_v<Number> std::string text(Number value) { return std::to_string(value); }
template <class First, class Second, class... Rest>
std::string text(const First& first, const Second& second, const Rest&... rest) {
    return text(first) + text(second, rest...);
}
// Returns the texts of all items, joined by a separator.
template <class Items>
std::string joined(const Items& items, const char* separator = ", ") {
    std::string out;
    for (const auto& item : items) out += text(out.empty() ? "" : separator, item);
    return out;
}

}  // namespace smla

// `got` is evaluated only when the condition fails.
#define SMLA_CHECK(condition, field, got, wanted)                                                  \
    do {                                                                                           \
        if (!(condition))                                                                          \
            ::smla::fail(SMLA_INVALID_ARGUMENT, (field), ::smla::text(got), ::smla::text(wanted)); \
    } while (0)
