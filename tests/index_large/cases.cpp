// The cases of tests/index, for the sizes that are too slow for it.
#include "index/cases.cpp"
