"""Rows of complete layers on a CPU: DeepSeek-V3.2 in transformers, with its attention and with smla."""

import torch

from .inputs import relative
from .pair import Pair

CHUNK = 512


def _model(row, tokens):
    import transformers

    torch.manual_seed(0)
    config = transformers.DeepseekV32Config(
        hidden_size=row["hidden"], num_hidden_layers=1, num_attention_heads=row["heads"],
        num_key_value_heads=row["heads"], q_lora_rank=1536, index_n_heads=64, index_topk=2048,
        first_k_dense_replace=1, intermediate_size=64, vocab_size=8, pad_token_id=0,
        max_position_embeddings=tokens + 4096,
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)  # unlike model.to(), this keeps the rotary frequencies in f32
    try:
        model = transformers.DeepseekV32Model._from_config(config, attn_implementation="sdpa")
    finally:
        torch.set_default_dtype(torch.float32)
    return model.eval(), transformers.DynamicCache


class _Side:
    """A model with a cache that contains the tokens before a step."""

    def __init__(self, row, on_smla, inputs):
        self.model, cache = _model(row, row["context"])
        if on_smla:
            import smla.transformers

            smla.transformers.enable(self.model, threads=1)
        self.past = cache(config=self.model.config)
        self.inputs = inputs.normal(1, CHUNK, row["hidden"], dtype=torch.bfloat16)
        for first in range(0, row["context"], CHUNK):
            self.run(min(CHUNK, row["context"] - first))

    @torch.no_grad()
    def run(self, tokens):
        return self.model(inputs_embeds=self.inputs[:, :tokens], past_key_values=self.past).last_hidden_state


def transformers_decode(inputs, _, row):
    """Compares decode steps of one token after a context, in a layer with one MLP of 64 channels."""
    sides = [_Side(row, on_smla, inputs) for on_smla in (False, True)]

    def check(peer, ours):
        return {"errors": [0.0, relative(ours, peer)], "limit": 2e-2}

    return Pair(lambda: sides[0].run(1), lambda: sides[1].run(1), check)


KINDS = {"transformers_decode": transformers_decode}
