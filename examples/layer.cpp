// Runs an attention layer of a checkpoint on hidden states: layer CHECKPOINT LAYER HIDDEN OUT [CHUNK]
//   CHECKPOINT  folder with config.json and model.safetensors (or shards)
//   LAYER       number of the layer
//   HIDDEN      file of f32 values [T,X], as written by NumPy's tofile(); X is the model's hidden size
//   OUT         file for the layer's output, f32 values [T,X]
//   CHUNK       tokens per step; 0, the default, runs all tokens in one step
#include <smla/smla.hpp>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

std::vector<float> read_floats(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file) throw std::runtime_error(path + ": cannot be read");
    const auto bytes = file.tellg();
    if (bytes % sizeof(float)) throw std::runtime_error(path + ": not a whole number of f32 values");
    std::vector<float> values(size_t(bytes) / sizeof(float));
    file.seekg(0);
    if (!file.read(reinterpret_cast<char*>(values.data()), bytes))
        throw std::runtime_error(path + ": cannot be read");
    return values;
}

void write_floats(const std::string& path, const std::vector<float>& values) {
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(values.data()), std::streamsize(values.size() * sizeof(float)));
    file.close();
    if (!file) throw std::runtime_error(path + ": cannot be written");
}

void run(const char* checkpoint, int32_t number, const char* hidden_path, const char* out_path,
         int64_t chunk) {
    // [README.begin]
    smla::Context context;
    smla::Layer layer(context, checkpoint, number);
    const int64_t width = layer.info().hidden_size;
    // [README.end]
    std::vector<float> hidden = read_floats(hidden_path);
    if (hidden.empty() || int64_t(hidden.size()) % width)
        throw std::runtime_error(std::string(hidden_path) + ": " + std::to_string(hidden.size()) +
                                 " values, wanted a multiple of " + std::to_string(width));
    std::vector<float> out(hidden.size());
    const int64_t tokens = int64_t(hidden.size()) / width;
    if (chunk <= 0) chunk = tokens;

    // [README.begin]
    smla_session_args caches{};  // defaults: f32 records, one request
    caches.max_tokens = int32_t(tokens);
    caches.max_step_tokens = int32_t(std::min(chunk, tokens));
    smla::Session session(layer, caches);
    for (int64_t t = 0; t < tokens; t += chunk) {
        const int64_t n = std::min(chunk, tokens - t);
        session.forward(smla::tensor(&hidden[size_t(t * width)], {n, width}),
                        smla::tensor(&out[size_t(t * width)], {n, width}));
    }
    // [README.end]
    write_floats(out_path, out);
    std::printf("layer %d on %s: %d tokens, %zu bytes of caches\n", int(number),
                context.description().c_str(), int(session.length()), session.cache_bytes());
}

}  // namespace

int main(int count, char** words) {
    if (count < 5 || count > 6) {
        std::fprintf(stderr, "usage: %s CHECKPOINT LAYER HIDDEN OUT [CHUNK]\n", words[0]);
        return 2;
    }
    try {
        run(words[1], std::atoi(words[2]), words[3], words[4], count > 5 ? std::atoll(words[5]) : 0);
        return 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
