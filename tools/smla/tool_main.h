// The whole tool as one function. In a wheel it lies in libsmla.so, so that the library is there once.
#pragma once

#include <smla/types.h>

extern "C" SMLA_API int smla_tool_main(int argc, char** argv);
