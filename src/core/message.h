// The text of an error.
#pragma once

#include <string>

namespace smla {

// The part of a message behind the field: "got X, wanted Y", or `got` itself if `wanted` is empty. `got` is
// then a sentence that says what happened and what to do.
inline std::string got_and_wanted(const std::string& got, const std::string& wanted) {
    return wanted.empty() ? got : "got " + got + ", wanted " + wanted;
}

}  // namespace smla
