// smla/hpp/error.hpp: errors of the C ABI as exceptions, and version numbers.
#ifndef SMLA_HPP_ERROR_HPP
#define SMLA_HPP_ERROR_HPP

#include <smla/types.h>

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

namespace smla {
inline namespace v0 {

// Error of a call: status, name of the field, its value (got), and its required value (wanted).
class SMLA_API Error : public std::exception {
public:
    Error(smla_status status, std::string field_name, std::string got_value, std::string wanted_rule)
        : code(status),
          field(std::move(field_name)),
          got(std::move(got_value)),
          wanted(std::move(wanted_rule)),
          message_(field + ": " + (wanted.empty() ? got : "got " + got + ", wanted " + wanted)) {}

    // Returns the last error of this thread, for a status that a C call has just returned.
    static Error last(smla_status status) {
        smla_error info{};
        smla_last_error_info(&info);
        Error error(status, info.field, info.got, info.wanted);
        error.message_ = info.message;
        return error;
    }

    const char* what() const noexcept override { return message_.c_str(); }

    smla_status code;
    std::string field, got, wanted;

private:
    std::string message_;
};

// Throws the error of a failed C call, for C calls that have no wrapper: smla::check(smla_...(...)).
inline void check(smla_status status) {
    if (status != SMLA_OK) throw Error::last(status);
}

struct Version {
    int32_t major, minor, patch;
    friend bool operator==(const Version&, const Version&) = default;
};

namespace detail {
constexpr Version version(int32_t number) { return {number / 10000, number / 100 % 100, number % 100}; }
}  // namespace detail

// Versions of the headers with which the caller was compiled, and of the library that runs. A context rejects
// a library of another major version and, before 1.0, of another minor version.
constexpr Version header_version = detail::version(SMLA_VERSION);
inline Version library_version() { return detail::version(smla_version()); }

namespace detail {
// Returns an argument struct with its size filled in.
template <class Args>
Args sized(Args args) {
    if (args.struct_size == 0) args.struct_size = sizeof(Args);
    return args;
}
}  // namespace detail

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_ERROR_HPP
