#include "layer_files.h"

#include "model/findings.h"
#include "names.h"

#include <CLI/CLI.hpp>

namespace smla::cli {

namespace {

constexpr int64_t kMost = 1 << 30;  // of sequences and of tokens; a session counts them in 32 bits

std::string pick_hidden(const SafetensorsFile& file, const std::string& name) {
    if (!name.empty()) return name;
    for (const char* usual : {"hidden", "hidden_states"})
        if (file.has(usual)) return usual;
    const std::vector<std::string> names = file.names();
    if (names.size() != 1)
        fail(SMLA_DATA_ERROR, file.name() + ": tensor hidden", "absent",
             "a tensor named hidden or hidden_states; otherwise use --hidden-name");
    return names[0];
}

Tensor with_batch(const Tensor& tensor) {  // [S,...] as [1,S,...]
    Tensor out = tensor;
    for (int i = tensor.ndim; i > 0; --i) {
        out.shape[i] = tensor.shape[i - 1];
        out.stride_elems[i] = tensor.stride_elems[i - 1];
    }
    out.ndim = tensor.ndim + 1;
    out.shape[0] = 1;
    out.stride_elems[0] = tensor.shape[0] * tensor.stride_elems[0];
    return out;
}

int parse_layer(const std::string& file, std::string layer) {
    const std::string error = whole_number(0, kMostLayers)(layer);
    SMLA_CHECK(error.empty(), file + ": metadata layer", printable(layer),
               text("a whole number, 0 to ", kMostLayers));
    return std::stoi(layer);
}

HostTensor read_tensor(const std::string& path, const std::string& name, uint32_t dtypes, int64_t batch,
                       int64_t tokens) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::string field = file.name() + ": tensor " + name;
    HostTensor out = file.tensor(name);
    if (out.view.ndim == 2 && batch == 1 && out.view.shape[0] == tokens) out.view = with_batch(out.view);
    check_tensor(field.c_str(), out.view, dtypes, {batch, tokens, kAny});
    return out;
}

}  // namespace

LayerInput read_input(const std::string& path, const std::string& name, int64_t hidden_size) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::string tensor = pick_hidden(file, name), field = file.name() + ": tensor " + tensor;
    LayerInput out;
    out.hidden = file.tensor(tensor);
    if (out.hidden.view.ndim == 2) out.hidden.view = with_batch(out.hidden.view);
    check_tensor(field.c_str(), out.hidden.view, kFloats, {kAny, kAny, hidden_size});
    out.batch = out.hidden.view.shape[0];
    out.tokens = out.hidden.view.shape[1];
    SMLA_CHECK(out.batch >= 1 && out.tokens >= 1, field, describe(out.hidden.view), "at least one token");
    SMLA_CHECK(out.batch <= kMost && out.tokens <= kMost, field, describe(out.hidden.view),
               text("at most ", kMost, " sequences and ", kMost, " tokens per sequence"));
    if (file.has("position_ids")) {
        out.positions = file.tensor("position_ids");
        Tensor& view = out.positions.view;
        if (view.ndim == 1) view = with_batch(view);
        const std::string positions = file.name() + ": tensor position_ids";
        check_tensor(positions.c_str(), view, kInts, {kAny, out.tokens});
        SMLA_CHECK(view.shape[0] == out.batch || view.shape[0] == 1, positions, describe(view),
                   out.batch == 1 ? "1 row" : text(out.batch, " rows, or 1"));
        if (view.shape[0] == 1) view.stride_elems[0] = 0;  // the same for every sequence
        view.shape[0] = out.batch;
    }
    const auto layer = file.metadata().find("layer");
    if (layer != file.metadata().end()) out.layer = parse_layer(file.name(), layer->second);
    return out;
}

std::string other_hidden(int layer) { return text("hidden.layer", layer); }

std::vector<HostTensor> read_others(const std::string& path, const std::vector<int>& layers,
                                    const LayerInput& input, int reader) {
    std::vector<HostTensor> out;
    if (layers.empty()) return out;
    const SafetensorsFile file = SafetensorsFile::open(path);
    for (const int layer : layers) {
        const std::string name = other_hidden(layer);
        if (!file.has(name))
            fail(SMLA_DATA_ERROR, file.name() + ": tensor " + name, "absent",
                 text("the hidden states of layer ", layer, ", which layer ", reader, " reads"));
        out.push_back(read_tensor(path, name, kFloats, input.batch, input.tokens));
        const int64_t width = input.hidden.view.shape[2];
        SMLA_CHECK(out.back().view.shape[2] == width, file.name() + ": tensor " + name,
                   describe(out.back().view), text("rows of width ", width));
    }
    return out;
}

HostTensor read_rows(const std::string& path, const std::string& name, int64_t batch, int64_t tokens) {
    return read_tensor(path, name, kFloats, batch, tokens);
}

HostTensor read_topk(const std::string& path, int64_t batch, int64_t tokens) {
    const HostTensor file = read_tensor(path, "topk", kInts, batch, tokens);
    if (file.view.dtype == SMLA_I32) return file;
    const auto narrow = std::make_shared<std::vector<int32_t>>(size_t(element_count(file.view)));
    const auto* const wide = static_cast<const int64_t*>(file.view.data);
    for (size_t i = 0; i < narrow->size(); ++i) {
        SMLA_CHECK(wide[i] == int32_t(wide[i]), path + ": tensor topk", wide[i], "positions in the sequence");
        (*narrow)[i] = int32_t(wide[i]);
    }
    return {make_tensor(narrow->data(), SMLA_I32, {batch, tokens, file.view.shape[2]}), narrow};
}

}  // namespace smla::cli
