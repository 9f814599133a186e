#include "outputs.h"

#include "core/status.h"
#include "model/output_file.h"

#include <filesystem>

namespace smla::cli {

namespace {

namespace fs = std::filesystem;

// Whether two paths name the same file, existing or not. Devices such as /dev/null are ignored, because
// nothing is lost there.
bool same_file(const std::string& a, const std::string& b) {
    std::error_code error;
    if (fs::exists(a, error) && fs::exists(b, error))
        return fs::equivalent(a, b, error) && fs::is_regular_file(a, error);
    return fs::weakly_canonical(fs::absolute(a, error), error) ==
           fs::weakly_canonical(fs::absolute(b, error), error);
}

// Whether `path` is a file that Checkpoint::open() or load_config() reads in the checkpoint's folder.
bool is_of_checkpoint(const std::string& path, const std::string& checkpoint) {
    std::error_code error;
    if (!fs::exists(path, error)) return false;
    if (!fs::is_directory(checkpoint, error)) return same_file(path, checkpoint);
    for (fs::directory_iterator it(checkpoint, error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        const bool read = name.rfind("model", 0) == 0 || name == "config.json";
        if (read && same_file(path, it->path().string())) return true;
    }
    return false;
}

}  // namespace

void check_outputs(const std::vector<NamedPath>& outputs, const std::vector<NamedPath>& inputs,
                   const std::string& checkpoint) {
    std::vector<NamedPath> taken = inputs;
    for (const NamedPath& output : outputs) {
        if (output.path.empty()) continue;
        for (const NamedPath& other : taken)
            SMLA_CHECK(other.path.empty() || !same_file(output.path, other.path), output.option, output.path,
                       "a file other than that of " + other.option);
        SMLA_CHECK(!is_of_checkpoint(output.path, checkpoint), output.option, output.path,
                   "a file that is not part of the checkpoint");
        OutputFile::check(output.path);
        taken.push_back(output);
    }
}

}  // namespace smla::cli
