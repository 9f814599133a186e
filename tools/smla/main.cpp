// smla: the program.
#include "tool_main.h"

int main(int argc, char** argv) { return smla_tool_main(argc, argv); }
