// Sizes are asked for before there is memory: while a ShapesOnly lives, checks of this thread accept null
// data.
#pragma once

namespace smla {

class ShapesOnly {
public:
    ShapesOnly();
    ~ShapesOnly();
    ShapesOnly(const ShapesOnly&) = delete;
    ShapesOnly& operator=(const ShapesOnly&) = delete;
};
bool shapes_only();

}  // namespace smla
