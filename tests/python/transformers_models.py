"""Small random models of transformers with attention of the kinds that smla.transformers replaces."""

import copy
import importlib.util

import torch
import transformers
from smla import transformers as on_smla

torch.set_num_threads(1)  # the models are tiny
FLASH = importlib.util.find_spec("transformers.models.glm5_next") is not None
KINDS = ("v32", "glm", "v4", *(["flash"] if FLASH else []))
COMMON = {
    "hidden_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 3,
    "q_lora_rank": 64,
    "vocab_size": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
    "initializer_range": 0.08,
    "max_position_embeddings": 4096,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
}
# An index score is exactly 0 where every head's dot product is negative, and torch.topk and smla choose
# differently among equal scores: with the 32 heads of the real models none is 0. 8 heads gave 1 % of the
# tokens another selection.
INDEX_HEADS = 32
# Records of 512 + 64 values, as fp8 ones have. All MLPs are dense: a router's choice would flip by rounding.
DSA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 64,
    "v_head_dim": 32,
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": 128,
    "index_topk": 64,
    "first_k_dense_replace": 3,
    "intermediate_size": 128,
    "n_group": 1,
    "topk_group": 1,
}
V4_LAYERS = ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"]
V4 = {
    "num_key_value_heads": 1,
    "head_dim": 512,
    "partial_rotary_factor": 0.125,
    "o_groups": 2,
    "o_lora_rank": 32,
    "sliding_window": 16,
    "layer_types": V4_LAYERS,
    "compress_rates": {V4_LAYERS[1]: 4, V4_LAYERS[2]: 16},
    "index_n_heads": INDEX_HEADS,
    "index_head_dim": 128,
    "index_topk": 16,
    "hc_mult": 2,
    "mlp_layer_types": ["moe"] * 3,
}
# GLM-5.3-Flash: a layer of linear attention, one that selects pools, and one that shares its selection. The
# language model is part of a model with an image encoder.
POOLS = {
    "qk_rope_head_dim": 0,
    "index_kpool": 4,
    "layer_types": ["linear_attention", "full_attention", "full_attention"],
    "indexer_types": ["full", "full", "shared"],
    "mlp_layer_types": ["dense"] * 3,
    "linear_head_dim": 16,
    "linear_num_heads": 4,
    "hc_mult": 2,
}
IMAGES = {"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16, "out_hidden_size": 128}


def text_config(model):
    return model.config.get_text_config(decoder=True)


def layers(model):
    """The decoder layers of the language model."""
    return getattr(model.model, "language_model", model.model).layers


def small(kind, seed=0, **more):
    """A model in f32, ready to run, with random weights where transformers' own are zeros and ones."""
    torch.manual_seed(seed)
    if kind == "v4":
        model = transformers.DeepseekV4ForCausalLM(transformers.DeepseekV4Config(**{**COMMON, **V4, **more}))
    elif kind == "glm":
        sharing = {"rms_norm_eps": 1e-5, "indexer_types": ["full", "shared", "full"]}
        config = transformers.GlmMoeDsaConfig(**{**COMMON, **DSA, **sharing, **more})
        model = transformers.GlmMoeDsaForCausalLM(config)
    elif kind == "flash":
        text = {**COMMON, **DSA, **POOLS, **more}
        family = transformers.models.glm5_next
        config = family.Glm5NextConfig(text_config=text, vision_config=IMAGES)
        model = family.Glm5NextForConditionalGeneration(config)
    else:
        config = transformers.DeepseekV32Config(**{**COMMON, **DSA, **more})
        model = transformers.DeepseekV32ForCausalLM(config)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if "sinks" in name or "position_bias" in name or name.endswith("kpool_compress_ape"):
                value.normal_(0, 0.5)
            elif name.endswith("kpool_compress_gate"):
                value.normal_(0, 0.1)
            elif "norm" in name and name.endswith("weight"):
                value.normal_(1, 0.2)
            elif name.endswith("bias"):
                value.normal_(0, 0.1)
    return model.eval()


def pair(kind, seed=0, **options):
    """A model as it is, and a copy on smla."""
    model = small(kind, seed)
    return model, on_smla.enable(copy.deepcopy(model), **options)


def prompts(batch=2, tokens=150, seed=1):
    return torch.randint(4, 500, (batch, tokens), generator=torch.Generator().manual_seed(seed))


def padded(ids, lengths):
    """ids with all but the last lengths[i] tokens as padding on the left, and the mask."""
    mask = (torch.arange(ids.shape[1]) >= ids.shape[1] - torch.tensor(lengths)[:, None]).long()
    return ids * mask, mask


def generate(model, ids, tokens=12, **options):
    """Greedy: (tokens, logits [steps,B,V])."""
    fixed = {"do_sample": False, "return_dict_in_generate": True, "output_logits": True}
    out = model.generate(ids, max_new_tokens=tokens, **fixed, **options)
    return out.sequences, torch.stack(out.logits), out.past_key_values


def errors(got, wanted):
    """[...] Largest difference of each token's logits, of the size of all."""
    wanted = wanted.double()
    return (got.double() - wanted).abs().amax(-1) / wanted.abs().max()
