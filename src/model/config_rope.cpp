#include "model/config_parts.h"

namespace smla {

namespace {

// transformers scales the softmax by mscale_all_dim and cos/sin by attention_factor, whose default is the
// ratio of both magnitudes, or a default magnitude if one of them is 0. Both magnitudes are equal (ratio 1)
// in all published models. Other models are rejected, because results would be slightly wrong.
double read_magnitude(const ObjectReader& reader, double factor) {
    if (reader.has("attention_factor")) return reader.number("mscale_all_dim", 0, 1000, 0);
    const double all = reader.number("mscale_all_dim", 0, 1000);
    const double mscale = reader.number("mscale", 0, 1000);
    if (!reader.good({"mscale", "mscale_all_dim", "factor"})) return all;
    if (mscale != all)
        reader.add("mscale", text(mscale),
                   text(all, " (mscale_all_dim), because scaled RoPE channels are not supported"));
    else if (all == 0 && factor > 1)
        reader.add("mscale_all_dim", "0", "a number above 0, or attention_factor 1");
    return all;
}

Yarn read_yarn(const ObjectReader& reader, bool dsa) {
    Yarn yarn;
    yarn.factor = reader.number("factor", 1, 1e6);
    yarn.original_positions = reader.number("original_max_position_embeddings", 1, 1e12);
    yarn.beta_fast = reader.number("beta_fast", 1e-6, 1e6, 32);
    yarn.beta_slow = reader.number("beta_slow", 1e-6, 1e6, 1);
    const bool truncate = reader.boolean("truncate", true);
    yarn.truncate = truncate || !dsa;  // as in transformers, V4 always truncates
    if (yarn.beta_fast < yarn.beta_slow && reader.good({"beta_fast", "beta_slow"}))
        reader.add("beta_fast", text(yarn.beta_fast), text("at least ", yarn.beta_slow, " (beta_slow)"));
    yarn.place = reader.path("");
    if (dsa) yarn.mscale = read_magnitude(reader, yarn.factor);
    // V4 has no magnitude: transformers and vLLM set the factor to 1 and ignore the mscale members.
    const double factor = reader.number("attention_factor", 0, 1000, 1);
    if (factor != 1 && reader.good({"attention_factor"}))
        reader.add("attention_factor", text(factor), "1, because scaled RoPE channels are not supported");
    return yarn;
}

// Without a type, transformers treats the object as plain rope and only warns of what it ignores.
void check_no_scaling(const ObjectReader& reader) {
    for (const char* member : {"factor", "original_max_position_embeddings", "beta_fast", "beta_slow",
                               "mscale", "mscale_all_dim", "attention_factor", "truncate"})
        if (reader.has(member))
            return reader.add("rope_type", "absent", text("yarn, or default without ", member));
}

}  // namespace

void read_rope(const ObjectReader& reader, bool dsa, RopeParameters& rope) {
    rope.theta = reader.number("rope_theta", kMinTheta, kMaxTheta, rope.theta);
    const char* member = reader.has("rope_type") ? "rope_type" : "type";
    if (!reader.has(member)) check_no_scaling(reader);
    const std::string type = reader.string(member).value_or("default");
    if (type == "yarn" || type == "deepseek_yarn") {  // vLLM's name for DeepSeek's variant
        rope.yarn = read_yarn(reader, dsa);
    } else if (type != "default") {
        reader.add(member, in_quotes(type), "default or yarn");
    }
}

void check_ramp(const ObjectReader& reader, int64_t rope_dim, const RopeParameters& rope) {
    if (!rope.yarn) return;
    const YarnRamp ramp = yarn_ramp(rope_dim, rope.theta, *rope.yarn);
    if (!(ramp.low <= ramp.high))
        reader.add(rope.yarn->place + "original_max_position_embeddings", text(rope.yarn->original_positions),
                   text("a YaRN ramp within the ", rope_dim, " RoPE channels, not from ", ramp.low, " to ",
                        ramp.high));
}

}  // namespace smla
