// CLI11's names for headers: its own header takes seconds to compile, so the files that call it include it.
#pragma once

namespace CLI {
class App;
class Validator;
}  // namespace CLI
