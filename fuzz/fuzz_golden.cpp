// Any text as the JSON of a golden file, beside tensors that are right: either one Error that names it, or
// layers and steps that a run may rely on.
#include "fuzz.h"
#include "golden/golden.h"
#include "json_mutator.h"

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

namespace {

namespace fs = std::filesystem;
using smla::golden::Golden;

// A folder of this process with the tensors in it; the JSON beside them is written anew for every input.
class Folder {
public:
    Folder() {
        std::string name = (fs::temp_directory_path() / "smla_fuzz_golden_XXXXXX").string();
        FUZZ_ASSERT(mkdtemp(name.data()));
        path_ = name;
        fs::copy_file(SMLA_FUZZ_GOLDEN, tensors());
    }
    ~Folder() { fs::remove_all(path_); }
    std::string tensors() const { return (path_ / "case.safetensors").string(); }
    void write(const uint8_t* data, size_t size) const {
        std::ofstream out(path_ / "case.json", std::ios::binary | std::ios::trunc);
        out.write(reinterpret_cast<const char*>(data), std::streamsize(size));
        FUZZ_ASSERT(out.good());
    }

private:
    fs::path path_;
};

void check_golden(const Golden& golden) {
    FUZZ_ASSERT(golden.batch >= 1 && golden.tokens >= 1 && !golden.layers.empty());
    for (const auto& plan : golden.chunk_plans)
        FUZZ_ASSERT(std::accumulate(plan.begin(), plan.end(), int64_t(0)) == golden.tokens);
    for (const auto& layer : golden.layers) {
        FUZZ_ASSERT(layer.index >= 0 && !layer.config_json.empty());
        FUZZ_ASSERT(layer.config.softmax_scale() > 0 && std::isfinite(layer.config.softmax_scale()));
    }
    if (golden.has("in.position_ids")) {
        for (const double position : golden.values("in.position_ids")) FUZZ_ASSERT(position >= 0);
    }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    return smla::fuzz::mutate_json(data, size, max_size, seed);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const Folder folder;
    folder.write(data, size);
    try {
        check_golden(smla::golden::load_golden(folder.tensors()));
    } catch (const smla::Error& error) {
        FUZZ_ASSERT(error.status == SMLA_DATA_ERROR || error.status == SMLA_INVALID_ARGUMENT);
        FUZZ_ASSERT(error.field.compare(0, 4, "case") == 0);
        FUZZ_ASSERT(!error.got.empty() && !error.wanted.empty());
    }
    return 0;
}
