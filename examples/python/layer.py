"""Runs an attention layer of a checkpoint in Hugging Face layout: prefill in chunks, then decode steps.

python examples/python/layer.py                       an example layer, compared with its expected output
python examples/python/layer.py CHECKPOINT LAYER      a layer of your checkpoint, on random hidden states
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import smla
from smla.tools import program


def read_safetensors(path):
    """Returns the floating-point tensors of a file: the length of a JSON header, the header, and the data."""
    data = Path(path).read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    out = {}
    for name, entry in header.items():
        if name != "__metadata__" and (dtype := {"F32": "<f4", "F64": "<f8"}.get(entry["dtype"])):
            first, last = (begin + offset for offset in entry["data_offsets"])
            out[name] = np.frombuffer(data[first:last], dtype).reshape(entry["shape"])
    return out


def run(layer, hidden, kv_format, chunk, decodes):
    """Runs one request, hidden [T,X]: the prompt in chunks, the last `decodes` tokens one by one."""
    session = layer.session(kv_format=kv_format, max_tokens=len(hidden), max_step_tokens=chunk)
    prompt = len(hidden) - decodes
    cuts = [*range(0, prompt, chunk), *range(prompt, len(hidden) + 1)]
    out = [session.forward(hidden[a:b]) for a, b in zip(cuts, cuts[1:])]
    print(
        f"  {kv_format}: {session.length()} tokens in {len(out)} steps, {session.cache_bytes} bytes of caches"
    )
    return np.concatenate(out)


def main(arguments):
    if arguments:
        layer = smla.Layer.from_pretrained(arguments[0], int(arguments[1]))
        hidden = np.random.default_rng(0).standard_normal((300, layer.info["hidden_size"])).astype("float32")
        expected = None
    else:
        golden = Path(__file__).resolve().parents[2] / "tests/goldens/D6.safetensors"
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([program(), "example", "--golden", golden, "--out", folder], check=True)
            layer = smla.Layer.from_pretrained(folder, 0)
            hidden = read_safetensors(f"{folder}/hidden.safetensors")["hidden"][0]
            expected = read_safetensors(f"{folder}/expected.safetensors")["y"][0]
    print(f"{layer.info['kind']}, {layer.info['heads']} heads, {layer.info['hidden_size']} channels")
    formats = ("row_f32", "fp8_656") if layer.info["kv_width"] == 576 else ("row_f32",)
    for kv_format in formats:
        out = run(layer, hidden, kv_format, chunk=len(hidden) // 3 + 1, decodes=2)
        assert np.isfinite(out).all()
        if expected is not None:
            error = np.linalg.norm(out - expected) / np.linalg.norm(expected)
            print(f"  error against the expected output: {error:.1e}")
            # Most of the error comes from other selected tokens (fp8 index keys), not from rounded values.
            assert error < (1e-4 if kv_format == "row_f32" else 0.2), error


if __name__ == "__main__":
    main(sys.argv[1:])
