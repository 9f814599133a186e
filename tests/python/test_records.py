"""Records of V4.1 and their writers, against the examples of other engines' code (tests/formats)."""

import json
from pathlib import Path

import numpy as np
import pytest
import smla
from smla import Writer

EXAMPLES = json.loads((Path(__file__).parents[1] / "formats/worked_examples.json").read_text())
INPUTS = {
    "zeros": np.zeros(512),
    "one_large": np.where(np.arange(512) == 37, -1000.0, 0.0),
    "ramp": (np.arange(512) - 256) / 64,
}
FORMATS = {
    "mxfp8_528.interleaved.vllm_floor": ("fp8_528_g32", 0),
    "mxfp8_528.split.vllm_floor": ("fp8_528_g32_split", 0),
    "mxfp8_528.interleaved.sglang_floor": ("fp8_528_g32", Writer.SCALE_FLOOR),
    "mxfp8_528.split.sglang_floor": ("fp8_528_g32_split", Writer.SCALE_FLOOR),
    "nvfp4_288.interleaved": ("nvfp4_288", 0),
    "nvfp4_288.split": ("nvfp4_288_split", 0),
    "nvfp4_384": ("nvfp4_384", 0),
    "nvfp4_352": ("nvfp4_352", 0),
}


@pytest.mark.parametrize("tokens", [1, 2])
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("given", INPUTS)
def test_written_as_other_engines_write(given, name, tokens):
    format, writer = FORMATS[name]
    example = EXAMPLES[given].get(name + (".two_tokens" if tokens == 2 else ""))
    if example is None:
        pytest.skip("no example")
    row = INPUTS[given].astype(np.float32)
    if format == "nvfp4_352":
        row = np.concatenate([row, row[448:]])
    rows = np.stack([row / (token + 1) for token in range(tokens)])
    cache = smla.Cache.empty(format, 1, tokens, writer=writer)
    smla.write_kv(rows, np.arange(tokens), cache)
    runs = [word.partition("*") for word in example.split()]  # "f8 00*3"
    want = np.concatenate([np.full(int(times or 1), int(byte, 16), np.uint8) for byte, _, times in runs])
    np.testing.assert_array_equal(cache.array[: want.size], want)


def test_the_writer_stays_with_the_cache():
    cache = smla.Cache.empty("fp8_528_g32", 1, 2, writer=Writer.SCALE_FLOOR | Writer.BF16_FIRST)
    again = smla.Cache(cache.array, **cache.layout)
    assert again.abi.writer == cache.abi.writer == 3
    cache.grow(2)
    assert cache.abi.writer == 3


@pytest.mark.parametrize(
    ("format", "writer"), [("fp8_528", 1), ("nvfp4_288", 1), ("nvfp4_384", 2), ("fp8_528_g32", 4)]
)
def test_a_rule_that_a_format_does_not_have(format, writer):
    with pytest.raises(smla.InvalidArgument) as caught:
        smla.Cache.empty(format, 1, 2, writer=writer)
    assert caught.value.field.endswith("cache.writer"), caught.value
