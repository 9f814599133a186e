// The whole tool as one function. In a wheel it is part of libsmla.so, so that the library is included once.
#pragma once

#include <smla/types.h>

extern "C" SMLA_API int smla_tool_main(int argc, char** argv);
