"""help() shows an example that runs for each public function and class; repr() is one correct line."""

import doctest
import inspect
import json
import threading

import numpy as np
import pytest
import smla
from smla import _units
from test_tools import V32
from test_types import public_names

WITHOUT_EXAMPLE = {"GpuView", "Writer"}  # requires a GPU; is an enumeration


def documented():
    """Returns {name: object} of the functions and classes whose help must have an example."""
    found = {}
    for module, name in public_names():
        if module in ("", "rows"):
            held = getattr(smla.rows if module else smla, name)
            is_error = inspect.isclass(held) and issubclass(held, Exception) and held is not smla.Error
            if callable(held) and not is_error and name not in WITHOUT_EXAMPLE:
                found[f"{module}.{name}".strip(".")] = held
    return {**found, "map": smla.map}


@pytest.mark.parametrize("name", sorted(documented()))
def test_examples(name, checkpoint, tmp_path, monkeypatch):
    golden, folder = checkpoint("D1")
    monkeypatch.chdir(tmp_path)
    yarn = {"type": "yarn", "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0}
    config = {**V32, "rope_scaling": {**yarn, "original_max_position_embeddings": 4096}}
    (tmp_path / "DeepSeek-V3.2").mkdir()
    (tmp_path / "DeepSeek-V3.2/config.json").write_text(json.dumps(config))
    monkeypatch.setattr(smla.context, "_defaults", {})  # an example may set the default
    space = {"np": np, "smla": smla, "config": config, "checkpoint": folder}
    text = inspect.getdoc(documented()[name])
    test = doctest.DocTestParser().get_doctest(text, space, name, None, None)
    assert test.examples, f"{name}: no example"
    said = []
    doctest.DocTestRunner(optionflags=doctest.FAIL_FAST).run(test, out=said.append)
    assert not said, "".join(said)


SIZES = {"max_tokens": 4, "max_requests": 2, "max_seq_len": 128}


def objects(checkpoint):
    """Returns one object of each class with a repr, and the parts that its repr must contain."""
    golden, folder = checkpoint("D1")
    context = smla.Context("cpu", threads=2)
    workspace = context.workspace()
    workspace.reserve(8192)
    cache = smla.Cache.empty("fp8_656", 8, 64)
    backend = smla.Backend(None, "dsa", heads=16, topk=64, softmax_scale=0.1, context=context, **SIZES)
    layer = smla.Layer.from_pretrained(folder, 0, context=context)
    table = np.zeros((2, 4), np.int32)
    scores = np.zeros((3, 9), np.float32)
    view = {"shape": (2, 3), "typestr": "<f4"}
    return {
        context: [context.description],
        workspace: ["8 KiB", context.description],
        cache: ["fp8_656", "width 576", "8 pages of 64 tokens", "328 KiB"],
        smla.tensor(np.zeros((2, 3), np.uint16), "bf16"): ["bf16 [2, 3]"],
        smla.Plan(["primary", "index"], **SIZES): ["index + primary", "4 tokens of 2 requests", "128"],
        backend: [backend.info["name"], "dsa", "16 heads", "up to 4 tokens", context.description],
        backend.metadata(): [backend.info["name"]],
        layer: ["dsa", f"{layer.info['heads']} heads", f"hidden size {layer.info['hidden_size']}", "KiB"],
        layer.session(max_tokens=64): [
            "row_f32",
            "1 requests of up to 64 tokens",
            "of caches",
            "smla.Layer(",
        ],
        smla.GpuView(view, None, 1): ["float32 [2, 3] on cuda:1"],
        smla.Call(smla.norm, ["x", "out"], scores[:, None], out=scores[:, None], eps=1e-6): ["moving x, out"],
        smla.reporting.Report.__new__(smla.reporting.Report): ["not ready"],
    }, [
        (smla.PlanGroup(table, page_tokens=64), "block_table=int32 [2, 4], slots=None, page_tokens=64"),
        (smla.select(scores, 2), "indices=int32 [3, 2], counts=int32 [3], selected=None, rows=None"),
        (smla.rows.Rows(table, table[0]), "rows=int32 [2, 4], lens=int32 [4]"),
        (smla.Attended(scores, None, scores), "out=float32 [3, 9], lse=None, max_logits=float32 [3, 9]"),
        (smla.QuantizedQuery(scores, None, 1), "q=float32 [3, 9], scales=None, w=1"),
        (smla.BlockSelection(scores, table, None, None, None), "counts=int32 [2, 4], selected=None"),
    ]


def every_class(kind=_units.Described):
    for each in kind.__subclasses__():
        yield each
        yield from every_class(each)


def test_repr(checkpoint):
    held, tuples = objects(checkpoint)
    for each, words in (*held.items(), *((each, [words]) for each, words in tuples)):
        text = repr(each)
        assert text.startswith(f"smla.{type(each).__name__}(") and text.endswith(")") and "\n" not in text
        assert len(text) < 200 and "0x" not in text
        assert not [word for word in words if word not in text], text
    public = {each for each in every_class() if not each.__name__.startswith("_")} - {_units.Described}
    own = {each for each in public if each.__module__.startswith("smla.") and "vllm" not in each.__module__}
    assert own - {type(each) for each in held} <= {smla._handles.Handle, smla._handles.Shared}


def test_repr_of_what_is_not_built():
    """Debuggers call repr on objects whose constructor has failed or has not finished."""
    for kind in every_class():
        assert repr(kind.__new__(kind)).startswith(f"smla.{kind.__name__}(")


class OnDevice:
    """An array whose memory must not be read."""

    shape, dtype, device = (2, 3), "torch.bfloat16", "cuda:0"

    def __getattr__(self, name):
        raise AssertionError(f"read {name}")

    __repr__ = __str__ = __iter__ = __len__ = __array__ = __dlpack__ = lambda self, *_: self.memory


def test_repr_reads_no_memory():
    array = OnDevice()
    assert repr(smla.Attended(array, None, None)).startswith(
        "smla.Attended(out=bfloat16 [2, 3] on cuda:0, lse"
    )
    assert "block_table=bfloat16 [2, 3] on cuda:0" in repr(smla.PlanGroup(array))


def test_repr_of_a_session_in_use(checkpoint):
    golden, folder = checkpoint("D1")
    session = smla.Layer.from_pretrained(folder, 0).session(max_tokens=64)
    shown = []
    with session._in_use:
        thread = threading.Thread(target=lambda: shown.append(repr(session)))
        thread.start()
        thread.join()
    assert shown == ["smla.Session(not ready or in use)"] and "row_f32" in repr(session)
