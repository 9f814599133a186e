// smla example: unpacks a golden file into a checkpoint folder of the Hugging Face layout, with input and
// expected output.
#include "chain.h"
#include "common.h"
#include "core/visible.h"
#include "golden/golden.h"
#include "layer_files.h"
#include "model/output_file.h"
#include "subcommands.h"

#include <CLI/CLI.hpp>

#include <filesystem>

namespace smla::cli {

namespace {

namespace fs = std::filesystem;

struct Options {
    std::string golden, out;
    int layer = 0;
    bool force = false;
};

constexpr const char* kHidden =
    "hidden.safetensors";  // written first; its metadata marks the folder as written by smla

void write_text(const fs::path& path, const std::string& content) {
    OutputFile file(path.string());
    file.write(content.data(), content.size());
    file.commit();
}

bool made_here(const fs::path& folder) {
    try {
        return SafetensorsFile::open((folder / kHidden).string()).metadata().count("case") != 0;
    } catch (const Error& error) {
        if (error.status == SMLA_OUT_OF_MEMORY) throw;
        return false;
    }
}

void prepare(const fs::path& folder, bool force) {
    std::error_code error;
    fs::create_directories(folder, error);
    const bool empty = !error && fs::is_empty(folder, error);
    if (error)
        fail(SMLA_IO_ERROR, "--out " + folder.string(), text("cannot create the folder: ", error.message()),
             "");
    SMLA_CHECK(empty || force || made_here(folder), "--out", folder.string() + ", which contains other files",
               "a new or empty folder, a folder written by smla example, or --force to write into it");
}

// Tensors of a golden file under new names. Keeps their memory until they are written.
struct Picked {
    std::vector<HostTensor> memory;
    std::vector<NamedTensor> tensors;

    void add(const golden::Golden& golden, const std::string& from, const std::string& to) {
        memory.push_back(golden.file.tensor(from));
        tensors.push_back({to, memory.back().view});
    }
};

// Quotes a word for a shell.
std::string shell_word(const std::string& word) {
    constexpr const char* plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./+=:,@%";
    if (!word.empty() && word.find_first_not_of(plain) == std::string::npos) return word;
    std::string out = "'";
    for (const char letter : word) out += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
    return out + "'";
}

int example(const Tool& tool, const Options& options) {
    const golden::Golden golden = golden::load_golden(options.golden);
    SMLA_CHECK(size_t(options.layer) < golden.layers.size(), "--layer", options.layer,
               text("0 to ", golden.layers.size() - 1, " (the layers of the file)"));
    const golden::GoldenLayer& layer = golden.layers[size_t(options.layer)];
    const fs::path folder(options.out);
    prepare(folder, options.force);

    Picked weights, input, expected;
    const std::string prefix = golden::kWeightPrefix;
    for (const std::string& name : golden.file.names())
        if (name.compare(0, prefix.size(), prefix) == 0)
            weights.add(golden, name, name.substr(prefix.size()));
    input.add(golden, "in.hidden" + layer.suffix, "hidden");
    for (const int read : layers_read(layer.config, layer.index, false))
        for (const golden::GoldenLayer& other : golden.layers)
            if (other.index == read) input.add(golden, "in.hidden" + other.suffix, other_hidden(read));
    if (golden.has("in.position_ids")) input.add(golden, "in.position_ids", "position_ids");
    const std::string y =
        golden.has("ref.y" + layer.suffix) ? "ref.y" + layer.suffix : "out.y" + layer.suffix;
    expected.add(golden, y, "y");
    if (golden.has("mid.topk" + layer.suffix)) expected.add(golden, "mid.topk" + layer.suffix, "topk");

    const std::map<std::string, std::string> about{{"case", golden.name},
                                                   {"layer", std::to_string(layer.index)}};
    write_safetensors((folder / kHidden).string(), input.tensors, about);
    write_text(folder / "config.json", layer.config_json + "\n");
    write_safetensors((folder / "model.safetensors").string(), weights.tensors, {{"format", "pt"}});
    write_safetensors((folder / "expected.safetensors").string(), expected.tensors, about);
    const std::string command =
        fmt::format("smla run {0} --layer {1} --hidden {2} --out y.safetensors", shell_word(options.out),
                    layer.index, shell_word(options.out + "/hidden.safetensors"));
    if (tool.json())
        tool.print(Document{
            {"folder", options.out}, {"case", golden.name}, {"layer", layer.index}, {"try", command}});
    else
        tool.print(fmt::format("{}: layer {} of {}\n  {}\n", without_controls(options.out), layer.index,
                               without_controls(golden.name), without_controls(command)));
    return kOk;
}

}  // namespace

void add_example(CLI::App& app, Tool& tool) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = tool.command(app, "example", "Unpack a golden file into a checkpoint folder to run",
                                     "  smla example --golden tests/goldens/D6.safetensors --out v32\n  smla "
                                     "run v32 --hidden v32/hidden.safetensors --out y.safetensors");
    command->add_option("--golden", options->golden, "Golden file to unpack")->required();
    command->add_option("--out", options->out, "Folder to create")->required();
    command->add_option("--layer", options->layer, "Number of the layer within the file, from 0")
        ->check(whole_number(0, kMostLayers))
        ->capture_default_str();
    command->add_flag("--force", options->force, "Write into a folder that contains other files");
    tool.action(command, [&tool, options] { return example(tool, *options); });
}

}  // namespace smla::cli
