// Configurations of published models, by name.
#pragma once

#include "model/config.h"

#include <string>
#include <vector>

namespace smla::cli {

constexpr const char* kModelHelp =
    "A config.json, its folder, or a name such as deepseek-v3.2 (smla list models)";
std::vector<std::string> published_models();               // "deepseek-v3.2", ...
AttentionConfig published_model(const std::string& name);  // in upper or lower case
// Loads the value of --model: a config.json, its folder, or the name of a published model. An existing path
// takes precedence.
AttentionConfig load_model(const std::string& model);

}  // namespace smla::cli
