"""smla.layer_info and smla.rope_frequencies against the published formulas; MTP layers beside sharing."""

import json
import math

import numpy as np
import pytest
import smla

DSA = {
    "hidden_size": 64,
    "num_attention_heads": 2,
    "q_lora_rank": 16,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 64,
    "v_head_dim": 8,
    "index_n_heads": 4,
    "index_head_dim": 64,
    "index_topk": 4,
    "num_hidden_layers": 3,
    "num_nextn_predict_layers": 1,
}
V32_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 40.0,
    "original_max_position_embeddings": 4096,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
V32 = {**DSA, "model_type": "deepseek_v32", "rope_parameters": V32_ROPE}
GLM = {**DSA, "model_type": "glm_moe_dsa", "rope_theta": 8e6}
V4_ROPE = {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 65536}
V4 = {
    "model_type": "deepseek_v4",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "q_lora_rank": 16,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "o_groups": 2,
    "o_lora_rank": 8,
    "sliding_window": 8,
    "index_n_heads": 4,
    "index_head_dim": 128,
    "index_topk": 4,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "rope_scaling": V4_ROPE,
    "compress_ratios": [0, 4, 128],
}


def yarn(theta, factor, original, beta_fast=32, beta_slow=1, dim=64):
    """The frequencies of YaRN, in double."""
    pair = np.arange(dim // 2)
    plain = theta ** (-2 * pair / dim)

    def turning(turns):
        return dim * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = max(math.floor(turning(beta_fast)), 0), min(math.ceil(turning(beta_slow)), dim - 1)
    slowed = np.clip((pair - low) / (high - low), 0, 1)
    return plain * (1 - slowed) + plain / factor * slowed


V32_SCALE = (16 + 64) ** -0.5 * (0.1 * math.log(40) + 1) ** 2
CASES = {
    "V3.2": (V32, 0, V32_SCALE, 1e4, yarn(1e4, 40, 4096)),
    "V3.2, MTP": (V32, 3, V32_SCALE, 1e4, yarn(1e4, 40, 4096)),
    "GLM-5.2": (GLM, 0, (16 + 64) ** -0.5, 8e6, 8e6 ** (-np.arange(32) / 32)),
    "V4, window": (V4, 0, 512**-0.5, 1e4, 1e4 ** (-np.arange(32) / 32)),
    "V4, ratio 4": (V4, 1, 512**-0.5, 1.6e5, yarn(1.6e5, 16, 65536)),
    "V4, ratio 128": (V4, 2, 512**-0.5, 1.6e5, yarn(1.6e5, 16, 65536)),
}


@pytest.mark.parametrize("name", CASES)
def test_scale_and_frequencies_are_those_of_the_formulas(name, tmp_path):
    config, layer, scale, theta, frequencies = CASES[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for given in (config, tmp_path, str(tmp_path / "config.json")):
        info = smla.layer_info(given, layer)
        assert info["softmax_scale"] == pytest.approx(scale, rel=1e-14)
        assert (info["rope_theta"], info["rope_width"]) == (theta, 64)
        np.testing.assert_allclose(smla.rope_frequencies(given, layer), frequencies, rtol=1e-13)


def test_they_are_those_of_transformers():
    transformers = pytest.importorskip("transformers")
    if not hasattr(transformers, "DeepseekV32Config"):
        pytest.skip("a transformers without DeepSeek-V3.2")
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.deepseek_v32 import modeling_deepseek_v32 as modeling

    config = transformers.DeepseekV32Config(**{k: v for k, v in V32.items() if k != "model_type"})
    inverse, magnitude = ROPE_INIT_FUNCTIONS["yarn"](config, "cpu")  # f32
    assert magnitude == 1
    np.testing.assert_allclose(smla.rope_frequencies(config, 0), inverse.double().numpy(), rtol=4e-7)
    scale = modeling.yarn_apply_mscale(config.rope_parameters, config.qk_head_dim**-0.5)
    assert smla.layer_info(config, 0)["softmax_scale"] == pytest.approx(scale, rel=1e-14)


def test_names_and_refusals():
    assert smla.layer_info(V32)["index_rope_style"] == "half"
    assert smla.layer_info(GLM)["index_rope_style"] == "interleaved"
    assert smla.layer_info(V4, 1)["kind"] == "compressed_sparse"
    for layer, error in ((4, "0 to 3"), (-1, "0 to 3"), (1.5, "integer")):
        with pytest.raises(smla.InvalidArgument, match=error):
            smla.rope_frequencies(V32, layer)
    with pytest.raises(smla.DataError, match="hidden_size"):
        smla.layer_info({**V32, "hidden_size": None})
    infinite = {**V32, "swiglu_limit": float("inf"), "x": [float("nan"), -float("inf")]}
    assert smla.layer_info(infinite) == smla.layer_info(V32)
    with pytest.raises(smla.DataError, match='rms_norm_eps: got "Infinity", wanted a number'):
        smla.layer_info({**infinite, "rms_norm_eps": float("inf")})


RULES = [
    {},
    {"index_topk_freq": 3},
    {"index_topk_freq": 4, "index_skip_topk_offset": 1},
    {"indexer_types": ["full", "shared", "shared"]},
    {"indexer_types": ["full", "shared", "shared", "shared"]},
    {"index_topk_pattern": "FSS"},
]


def test_mtp_layers_run_their_own_indexer():
    """Whatever rule says which layers of the main stack share a selection."""
    rng, shapes = (
        np.random.default_rng(0),
        {
            "q_a_proj.weight": (16, 64),
            "q_a_layernorm.weight": (16,),
            "q_b_proj.weight": (2 * 80, 16),
            "kv_a_proj_with_mqa.weight": (32 + 64, 64),
            "kv_a_layernorm.weight": (32,),
            "kv_b_proj.weight": (2 * 24, 32),
            "o_proj.weight": (64, 2 * 8),
            "indexer.wq_b.weight": (4 * 64, 16),
            "indexer.wk.weight": (64, 64),
            "indexer.k_norm.weight": (64,),
            "indexer.k_norm.bias": (64,),
            "indexer.weights_proj.weight": (4, 64),
        },
    )
    weights = {
        f"model.layers.3.self_attn.{name}": rng.standard_normal(shape, np.float32) * 0.2
        for name, shape in shapes.items()
    }
    hidden, outputs = rng.standard_normal((20, 64), np.float32), []
    for rule in RULES:
        layer = smla.Layer.from_tensors({**V32, **rule}, weights, 3)
        assert (layer.info["kind"], layer.info["selection_of"]) == ("dsa", 3)
        session = layer.session(max_tokens=32)
        outputs.append(session.forward(hidden))
        assert session.topk.shape == (20, 4)
    for out in outputs[1:]:
        np.testing.assert_array_equal(out, outputs[0])
