#include "layer_files.h"

#include <cstdlib>

namespace smla::cli {

namespace {

std::string pick_hidden(const SafetensorsFile& file, const std::string& name) {
    if (!name.empty()) return name;
    for (const char* usual : {"hidden", "hidden_states"})
        if (file.has(usual)) return usual;
    const std::vector<std::string> names = file.names();
    if (names.size() != 1)
        fail(SMLA_DATA_ERROR, file.name() + ": tensor hidden", "absent",
             "a tensor hidden or hidden_states, or --hidden-name");
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
    if (file.has("position_ids")) {
        out.positions = file.tensor("position_ids");
        Tensor& view = out.positions.view;
        if (view.ndim == 1) view = with_batch(view);
        const std::string positions = file.name() + ": tensor position_ids";
        check_tensor(positions.c_str(), view, kInts, {kAny, out.tokens});
        SMLA_CHECK(view.shape[0] == out.batch || view.shape[0] == 1, positions, describe(view),
                   text(out.batch, " rows, or 1"));
        if (view.shape[0] == 1) view.stride_elems[0] = 0;  // the same for every sequence
        view.shape[0] = out.batch;
    }
    const auto layer = file.metadata().find("layer");
    if (layer != file.metadata().end()) out.layer = std::atoi(layer->second.c_str());
    return out;
}

HostTensor read_rows(const std::string& path, const std::string& name, int64_t batch, int64_t tokens) {
    const SafetensorsFile file = SafetensorsFile::open(path);
    const std::string field = file.name() + ": tensor " + name;
    HostTensor out = file.tensor(name);
    if (out.view.ndim == 2 && batch == 1 && out.view.shape[0] == tokens) out.view = with_batch(out.view);
    check_tensor(field.c_str(), out.view, kFloats | kInt32, {batch, tokens, kAny});
    return out;
}

}  // namespace smla::cli
