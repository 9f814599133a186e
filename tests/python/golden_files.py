"""The golden files (tests/goldens/README.md): what published attention layers make of their inputs."""

import json
import struct
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "goldens"
_NUMPY = {"F64": "<f8", "F32": "<f4", "I32": "<i4", "BF16": "<u2"}


def cases(prefix=""):
    return sorted(path.stem for path in FOLDER.glob(f"{prefix}*.safetensors"))


def from_bf16(codes):
    return (codes.astype(np.uint32) << 16).view(np.float32)


def read_safetensors(path):
    """{name: (dtype, array)}: bf16 as its 16 bits."""
    data = Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    out = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            array = np.frombuffer(data[begin:end], _NUMPY[entry["dtype"]])
            out[name] = entry["dtype"], array.reshape(entry["shape"])
    return out


def write_safetensors(path, tensors):
    """tensors: as read_safetensors gives them. The largest elements first, so that all are aligned."""
    header, blocks, at = {}, [], 0
    for name, (dtype, array) in sorted(tensors.items(), key=lambda item: -item[1][1].itemsize):
        blocks.append(array.tobytes())
        end = at + len(blocks[-1])
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blocks))


# What a file that does not tell means, as smla verify has it.
TOLERANCE = {"bf16_y_L2": 1.5e-2, "bf16_y_max": 1e-1, "bf16_y_cosine": 0.9999}


class Golden:
    """A case. `layers`: what its JSON says of each layer; their tensors end in the layer's "suffix"."""

    def __init__(self, name):
        self.name = name
        self.meta = json.loads((FOLDER / f"{name}.json").read_text())
        self._tensors = read_safetensors(FOLDER / f"{name}.safetensors")
        self.batch, self.tokens = self.meta["batch"], self.meta["seq_len"]
        self.layers, self.tolerance = self.meta["layers"], {**TOLERANCE, **self.meta["tolerance"]}

    def has(self, name):
        return name in self._tensors

    def names(self, prefix):
        return [name for name in self._tensors if name.startswith(prefix)]

    def __getitem__(self, name):
        dtype, array = self._tensors[name]
        return from_bf16(array) if dtype == "BF16" else array

    def rows(self, name):
        """[B,S,...] as [B*S,...]."""
        array = self[name]
        return array.reshape(-1, *array.shape[2:])

    def wanted(self, suffix=""):
        """The output in float64, [B*S,X]."""
        return self.rows(f"ref.y{suffix}")

    def topk(self, width, suffix=""):
        """The selection as [B*S,width]: ascending, then -1."""
        stored = self.rows(f"mid.topk{suffix}")
        out = np.full((len(stored), width), -1, np.int32)
        out[:, : stored.shape[1]] = stored
        return out

    def config(self, layer=None):
        """The config as a checkpoint of the model spells it."""
        out = {**self.meta["config"], **((layer or {}).get("config") or {})}
        out["model_type"] = self.meta["model_type"]
        if any(each.get("indexer") == "shared" for each in self.layers):
            types = {each["layer_idx"]: each["indexer"] for each in self.layers}
            out["indexer_types"] = [types.get(i, "full") for i in range(max(types) + 1)]
        return out

    def write_checkpoint(self, folder, layer=None):
        """config.json and model.safetensors, as Hugging Face lays them out."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config(layer)))
        weights = {name[2:]: value for name, value in self._tensors.items() if name.startswith("w.")}
        write_safetensors(folder / "model.safetensors", weights)
        return folder


def worst(a, b):
    """max |a - b| / rms(b), the measure of the golden files."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.abs(a - b).max() / np.sqrt(np.mean(b**2))


def l2(a, b):
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return np.linalg.norm(a - b) / np.linalg.norm(b)


def cosine(a, b):
    a, b = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
    return a @ b / np.sqrt((a @ a) * (b @ b))
