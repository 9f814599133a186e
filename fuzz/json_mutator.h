// Mutates JSON as JSON: one member or element is changed, removed, doubled or moved. Blind mutation of the
// text mostly makes text that is no JSON, and never gets to the rules between members.
#pragma once

#include <nlohmann/json.hpp>

#include <cstring>
#include <random>
#include <string>
#include <vector>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace smla::fuzz {

using Json = nlohmann::json;

class JsonMutator {
public:
    explicit JsonMutator(unsigned seed) : random_(seed) {}

    // Whether `text` was JSON and became other JSON.
    bool mutate(std::string& text) {
        Json json = Json::parse(text, nullptr, false);
        if (json.is_discarded() || !json.is_structured()) return false;
        for (unsigned i = 0; i <= random_() % 3; ++i) change(json);
        text = json.dump(-1, ' ', false, Json::error_handler_t::replace);
        return true;
    }

private:
    unsigned below(size_t n) { return n ? unsigned(random_() % n) : 0; }

    void change(Json& json) {
        if (json.empty()) {
            if (json.is_array()) json.push_back(value());
            return;
        }
        auto at = json.begin();
        std::advance(at, below(json.size()));
        if (at->is_structured() && !at->empty() && below(4) != 0) return change(*at);
        switch (below(8)) {
            case 0: json.erase(at); break;
            case 1: {
                Json copy = *at;
                if (json.is_array()) json.push_back(std::move(copy));
                break;
            }
            case 2: *at = value(); break;
            case 3: {
                auto other = json.begin();
                std::advance(other, below(json.size()));
                std::swap(*at, *other);
                break;
            }
            default: *at = near(*at); break;
        }
    }

    Json near(const Json& was) {  // a value like the one before
        if (was.is_number_integer() && below(3) != 0) {
            const uint64_t n = uint64_t(was.get<int64_t>());  // wraps at the ends
            const int64_t around[] = {
                int64_t(n - 1), int64_t(n + 1), int64_t(n) / 2, int64_t(n * 2), 0, 1, 4};
            return around[below(7)];
        }
        if (was.is_number() && below(3) != 0) return was.get<double>() * (below(2) ? 0.5 : 3.7);
        if (was.is_boolean()) return !was.get<bool>();
        return value();
    }

    Json value() {
        static const std::vector<Json> interesting = {nullptr,
                                                      true,
                                                      false,
                                                      0,
                                                      1,
                                                      2,
                                                      4,
                                                      8,
                                                      64,
                                                      128,
                                                      1024,
                                                      -1,
                                                      65536,
                                                      1048577,
                                                      INT64_MAX,
                                                      INT64_MIN,
                                                      UINT64_MAX,
                                                      281474976710656,
                                                      4294967296,
                                                      0.5,
                                                      -0.0,
                                                      1e-300,
                                                      1e300,
                                                      5e-324,
                                                      "",
                                                      "yarn",
                                                      "default",
                                                      "full",
                                                      "shared",
                                                      "FSSF",
                                                      "F32",
                                                      "U8",
                                                      "BOOL",
                                                      "F8_E4M3",
                                                      "sliding_attention",
                                                      "compressed_sparse_attention",
                                                      "heavily_compressed_attention",
                                                      "deepseek_v32",
                                                      "glm_moe_dsa",
                                                      "deepseek_v4",
                                                      "deepseek_v41",
                                                      "glm5_next",
                                                      "glm5_next_text",
                                                      "linear_attention",
                                                      "deepseek_sparse_attention",
                                                      Json::array(),
                                                      Json::object(),
                                                      Json::array({0, 4, 128}),
                                                      Json::array({0, 2, 1}),
                                                      Json::array({0, 0})};
        return interesting[below(interesting.size())];
    }

    std::mt19937 random_;
};

// The custom mutator of fuzzers whose input is JSON: one time in four, and where it is none, blind.
inline size_t mutate_json(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    std::string text(reinterpret_cast<char*>(data), size);
    if (seed % 4 == 0 || !JsonMutator(seed).mutate(text) || text.size() > max_size)
        return LLVMFuzzerMutate(data, size, max_size);
    std::memcpy(data, text.data(), text.size());
    return text.size();
}

}  // namespace smla::fuzz
