"""What records of a cache cost in accuracy where they change no selection: the table of transformers.md."""

import copy
import re

import pytest

torch = pytest.importorskip("torch", reason="no PyTorch")
transformers = pytest.importorskip("transformers", minversion="5.16", reason="no transformers 5.16")

from conftest import ROOT  # noqa: E402
from smla import transformers as on_smla  # noqa: E402
from transformers_models import prompts, small  # noqa: E402

TOKENS = 400
DOCUMENT = (ROOT / "docs/python/transformers.md").read_text(encoding="utf-8")
TABLE = re.findall(r"^\| `(\w+)` \| (V3\.2|V4)[^|]*\|[^|]*\| ([\d.e-]+) \|$", DOCUMENT, flags=re.M)
KINDS = {"V3.2": "v32", "V4": "v4"}


def attended(model, ids, kv_format):
    """Outputs of the first layer's attention. It selects every token, so no selection depends on rounding."""
    fast, outputs = on_smla.enable(copy.deepcopy(model), kv_format=kv_format, index_format="row_f32"), []
    fast.model.layers[0].self_attn.register_forward_hook(lambda module, given, out: outputs.append(out[0]))
    fast(ids, past_key_values=on_smla.Cache(fast.config))
    return outputs[0].double()


@pytest.mark.parametrize("kv_format, model, documented", TABLE)
@torch.no_grad()
def test_error_of_a_format(kv_format, model, documented):
    """|out - wanted| / |wanted|, both in the Euclidean norm, agrees with the document's within a tenth."""
    dense, ids = small(KINDS[model], index_topk=TOKENS), prompts(2, TOKENS)
    wanted = attended(dense, ids, "row_f32")
    error = float((attended(dense, ids, kv_format) - wanted).norm() / wanted.norm())
    assert error == pytest.approx(float(documented), rel=0.1)


def test_the_table():
    assert [row[0] for row in TABLE] == ["row_bf16", "fp8_656", "nvfp4_352", "fp8_584", "nvfp4_384"]
