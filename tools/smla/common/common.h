// What every subcommand includes.
#pragma once

#include "context_options.h"
#include "core/status.h"
#include "names.h"
#include "progress.h"
#include "table.h"
#include "tool.h"
#include "units.h"

#include <fmt/format.h>
