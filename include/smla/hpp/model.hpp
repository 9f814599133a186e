// smla/hpp/model.hpp: describes an attention layer from config.json, without its weights. smla/model.h
// documents the calls; invalid arguments throw smla::Error.
#ifndef SMLA_HPP_MODEL_HPP
#define SMLA_HPP_MODEL_HPP

#include <smla/model.h>
#include <smla/hpp/error.hpp>
#include <smla/hpp/tensor.hpp>

#include <vector>

namespace smla {
inline namespace v0 {

// Describes layer args.layer of args.config (a path) or args.config_json (its text).
inline smla_layer_info layer_info(smla_layer_args args) {
    args = detail::sized(args);
    smla_layer_info out{};
    out.struct_size = sizeof out;
    check(smla_config_layer_info(&args, &out));
    return out;
}

// Returns the layer's rotation frequencies in radians per position, for the stages that rotate.
inline std::vector<double> rope_frequencies(smla_layer_args args) {
    std::vector<double> out(static_cast<size_t>(layer_info(args).rope_width / 2));
    args = detail::sized(args);
    check(smla_config_rope_frequencies(&args, int32_t(out.size()), out.data()));
    return out;
}

}  // namespace v0
}  // namespace smla

#endif  // SMLA_HPP_MODEL_HPP
