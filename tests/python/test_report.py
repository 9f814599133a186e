"""smla.report and smla.bench as a notebook meets them: the page, its figures, and what it refuses."""

import html.parser
import json
import os
import re
import subprocess
import sys

import pytest
import smla
from conftest import ROOT
from smla.reporting import cases, documents, plots, units
from test_tools import V32

BENCH = {
    "cpu": "Test <b>CPU</b> & co",
    "context": "cpu $x^{$, 1 thread",
    "method": "median",
    "peak_bf16_dot_gflops": 400.0,
    "peak_f32_fma_gflops": 200.0,
    "peak_memory_gbytes_per_second": 20.5,
    "results": [
        {"stage": "attend", "case": f"V3.2 T{t} H128 K{k} fp8_656", "kernel": "k<1>", "ms": 1e-3 * t * k,
         "gflops": 100.0 + t, "gbytes_per_second": 2.0, "percent_of_peak": 30.0, "error": 1e-3}
        for t in (1, 16) for k in (128, 2048)
    ] + [
        {"stage": "decode", "case": "V3.2 layer, context 4096", "ms": 4.0, "part": False},
        {"stage": "score", "case": "V3.2 layer, context 4096", "ms": 3.0, "part": True},
        {"stage": "</script><script>alert(1)</script>", "case": "V3.2 layer, context 4096", "ms": 1.0,
         "part": True},
        {"stage": "sum", "case": "V3.2 layer, context 4096", "ms": 4.0, "part": True},
    ],
}  # fmt: skip
PEERS = {
    "name": "_Peer <i>&amp;</i> $y$",
    "results": [
        {"stage": "attend", "case": "V3.2 T1 H128 K128 fp8_656", "ms": 0.64},
        {"stage": "attend", "case": "of another library", "ms": 0.1},
    ],
}
VERIFY = {
    "kernels": [
        {"stage": "attend", "engine": "cpu", "kernel": "k<2>", "problems": 7, "worst_share_of_limit": 0.5},
        {"stage": "attend", "engine": "cpu", "kernel": "bad", "problems": 3, "worst_share_of_limit": 1.5,
         "pass": False},
    ],
    "combinations": [
        {"golden": "g", "engine": "cpu", "kv_format": "fp8_656", "index_format": "row_f32",
         "checked": [{"error": 1e-4, "tolerance": 4e-4}, {"error": 0.0, "tolerance": 0.0}]},
    ],
}  # fmt: skip


@pytest.fixture
def files(tmp_path):
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY), ("config", V32)):
        (tmp_path / f"{name}.json").write_text(json.dumps(document))
    return tmp_path


class Page(html.parser.HTMLParser):
    """The elements of a page; open and close must match."""

    void = {"meta", "br", "path", "use", "rect", "circle", "line"}

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.ids, self.links, self.texts = [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        self.note(tag, attributes)
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.note(tag, attributes)

    def note(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name == "id":
                self.ids.append(value)
            if name in ("src", "href", "xlink:href"):
                self.links.append(value)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag, (tag, self.getpos())

    def handle_data(self, data):
        self.texts.append(data)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("report")
    paths = {name: folder / f"{name}.json" for name in ("bench", "peers", "verify")}
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY)):
        paths[name].write_text(json.dumps(document))
    (folder / "config.json").write_text(json.dumps(V32))
    return smla.report(folder / "r.html", **paths, model=folder, memory=80), folder / "r.html"


def test_a_model_in_memory(made, tmp_path):
    """A dict gives what its file gives, under the name of its type; what is neither is named."""
    pytest.importorskip("matplotlib")
    files = {"bench": BENCH, "verify": VERIFY, "memory": 80}
    report = smla.report(tmp_path / "r.html", model=V32, **files)
    assert report.documents["model"] == "deepseek_v32"
    assert report.documents["capacity"] == made[0].documents["capacity"]
    with pytest.raises(smla.InvalidArgument, match="config: got int, wanted a path, a dict"):
        smla.report(model=3, **files)


def test_the_page_stands_alone(made):
    report, path = made
    assert path.read_text() == report.html and not list(path.parent.glob(".*"))
    page = Page(report.html)
    assert all(link.startswith("#") for link in page.links)
    assert {link[1:] for link in page.links} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    assert not re.search(r"@import|url\((?!#)|<link|<img|<iframe", report.html)
    assert {"machine", "choices", "speed", "peers", "accuracy", "capacity"} <= set(page.ids)
    # roofline; T of two K, K of two T; parts; pairs; accuracy; three of capacity
    assert page.tags.count("svg") == 1 + 1 + 1 + 1 + 1 + 1 + 3
    assert "#010101" not in report.html and "DejaVu Sans Display" not in report.html


def test_what_files_say_is_text(made):
    page = Page(made[0].html)
    assert page.tags.count("script") == 1 and "b" not in page.tags and "i" not in page.tags
    seen = " ".join(page.texts)
    for words in ("Test <b>CPU</b> & co", "$x^{$", "k<1>", "k<2>", "_Peer <i>&amp;</i> $y$", "alert(1)"):
        assert words in seen, words
    assert PEERS["name"] in [
        text.strip() for text in page.texts
    ]  # in the legend; matplotlib hides a leading _


def test_the_numbers_are_inside(made):
    report, _ = made
    data = json.loads(re.search(r'<script [^>]*id="data">(.*?)</script>', report.html, re.DOTALL).group(1))
    assert data["bench"] == [BENCH] and data["verify"] == [VERIFY]
    assert data["doctor"]["version"] == f"smla {smla.__version__}" == data["version"]
    rows = data["capacity"]["lines"]["fp8_656 + index_fp8_132"]
    (row,) = [row for row in rows if row["context"] == 131072]
    assert row["bytes"] == 131072 * 61 * (656 + 132) and row["fit"] == (80 << 30) // row["bytes"]
    assert "5x" in report.html and "640 µs" in report.html  # the peer's time by ours
    assert report._repr_html_().startswith("<iframe") and "<script" not in report._repr_html_()


def test_figures_follow_the_page(made):
    svgs = re.findall(r"<svg .*?</svg>", made[0].html, re.DOTALL)
    for svg in svgs:
        assert "<text" in svg and "var(--ink)" in svg and "<style" not in svg and "<metadata" not in svg
        assert re.search(r'role="img" aria-label="[^"]', svg)
    assert "<title>V3.2 T16 H128 K2048 fp8_656: 32.8 ms, 116 GFLOP/s, 30 % of peak</title>" in svgs[0]


def lines_of(svg):
    """Corners of the straight two-point lines that data draw: [((x, y), (x, y))], y downwards."""
    found = re.findall(r'<path d="M ([\d.]+) ([\d.]+) \nL ([\d.]+) ([\d.]+) \n" clip-path', svg)
    return [((float(a), float(b)), (float(c), float(d))) for a, b, c, d in found]


def test_rooflines():
    """The roof of memory rises to each peak of arithmetic, which begins there."""
    pytest.importorskip("matplotlib")
    rows = [{**row, "gflops": 30.0 * (number + 1)} for number, row in enumerate(BENCH["results"][:4])]
    peaks = {"bf16 dot": 400.0, "f32 FMA": 200.0}
    svg = plots.roofline("attend", rows, peaks, 20.5)
    assert "<title>memory, 20.5 GB/s</title>" in svg and ">memory, 20.5 GB/s<" in svg
    flat = sorted((line for line in lines_of(svg) if line[0][1] == line[1][1]), key=lambda line: line[0][1])
    rising = [line for line in lines_of(svg) if line[0][0] < line[1][0] and line[0][1] > line[1][1]]
    (low, high), (dot, fma) = rising[0], [line for line in flat if line[0][0] > rising[0][0][0] + 1][:2]
    assert len(rising) == 1 and dot[0] == pytest.approx(high, abs=0.01)
    share = (fma[0][0] - low[0]) / (high[0] - low[0])  # the f32 peak begins on the line
    assert 0.05 < share < 0.95
    assert fma[0][1] == pytest.approx(low[1] + share * (high[1] - low[1]), abs=0.01)
    assert "memory" not in plots.roofline("attend", rows, peaks)


def check_decode_steps(page, rows):
    """The figure of a page on what `smla bench` wrote: segments are the stages, each once, and the time
    behind a bar is that of the step, as in the tile at the top of the page."""
    (svg,) = [each for each in re.findall(r"<svg .*?</svg>", page, re.DOTALL) if "decode step by" in each]
    times = [row["ms"] for row in rows if row["stage"] == "decode"]
    assert times and f"<strong>{units.time_text(times[0])}</strong>" in page
    for case, ms in ((row["case"], row["ms"]) for row in rows if row["stage"] == "decode"):
        assert f">{units.time_text(ms)}<" in svg
        found = re.findall(rf"<title>{re.escape(case)}, (.*?): .*?, (\d+) %</title>", svg)
        assert len(found) > 1 and {stage for stage, _ in found} <= {
            "other stages", *(row["stage"] for row in rows if row["case"] == case and row.get("part"))
        } - {"sum"}  # fmt: skip
        assert sum(int(share) for _, share in found) == pytest.approx(100, abs=len(found) / 2 + 0.5)
        _, stages = cases.steps(rows)[case]
        (whole,) = [row["ms"] for row in rows if row["stage"] == "sum" and row["case"] == case]
        assert sum(stages.values()) == pytest.approx(whole)


def test_bench_and_defaults(monkeypatch):
    pytest.importorskip("matplotlib")
    found = smla.bench(case="select", quick=True, seconds=0.02)
    assert [row["stage"] for row in found["results"]] == ["select"] and found["results"][0]["ms"] > 0
    assert "cpu_" in found._repr_html_()
    assert 0.5 < found["peak_memory_gbytes_per_second"] < 20000
    with pytest.raises(smla.InvalidArgument, match="--case: got nothing"):
        smla.bench(case="nothing")
    report = smla.report(quick=True, seconds=0.01)  # no files: everything runs here
    rows = report.documents["bench"][0]["results"]
    assert {row["stage"] for row in rows} >= {"attend", "score", "decode"}
    check_decode_steps(report.html, rows)
    assert report.documents["verify"][0]["kernels"] and 'id="capacity"' not in report.html


def spoilt(document, path, value):
    document = json.loads(json.dumps(document))
    *way, last = path
    place = document
    for step in way:
        place = place[step]
    if value is KeyError:
        del place[last]
    else:
        place[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    "name,text,message",
    [
        (
            "bench",
            "{",
            "bench.json: got Expecting property name .* at line 1, column 2, wanted a JSON document",
        ),
        ("bench", "[" * 100000, "bench.json: got one that cannot be read, wanted a JSON document"),
        ("bench", "[]", r"bench.json: got \[\], wanted an object"),
        ("bench", '{"host": []}', "bench.json: results: got nothing, wanted a list"),
        ("bench", '{"results": []}', "bench.json: results: got none, wanted one at least"),
        ("bench", ("results", 1, "ms", "fast"), r'results\[1\].ms: got "fast", wanted a positive number'),
        ("bench", ("results", 1, "ms", -1), r"results\[1\].ms: got -1, wanted a positive number"),
        ("bench", ("results", 0, "ms", float("nan")), r"results\[0\].ms: got NaN, wanted a positive number"),
        ("bench", ("results", 0, "gflops", 1e999), r"results\[0\].gflops: got Infinity, wanted a positive"),
        ("bench", ("results", 2, "case", KeyError), r"results\[2\].case: got nothing, wanted a text"),
        ("bench", ("results", 2, 7), r"results\[2\]: got 7, wanted an object"),
        ("bench", ("peak_bf16_dot_gflops", True), "peak_bf16_dot_gflops: got true, wanted a positive number"),
        ("bench", ("peak_memory_gbytes_per_second", 0), "gbytes_per_second: got 0, wanted a positive number"),
        ("peers", ("results", 0, "stage", None), r"peers.json: results\[0\].stage: got null, wanted a text"),
        ("peers", ("results", 0, "case", "V9"), "peers.json: results: got no case of the bench results, wan"),
        ("verify", "{}", "verify.json: kernels: got none, and no combinations, wanted what `smla verify"),
        ("verify", ("kernels", 0, "problems", "x"), r'kernels\[0\].problems: got "x", wanted a number'),
        ("verify", ("combinations", 0, "checked", 0, "error", []), r"checked\[0\].error: got \[\], wanted a"),
    ],
)
def test_bad_files(files, name, text, message):
    pytest.importorskip("matplotlib")
    if isinstance(text, tuple):
        *path, value = text
        text = spoilt({"bench": BENCH, "peers": PEERS, "verify": VERIFY}[name], path, value)
    (files / f"{name}.json").write_text(text)
    paths = {each: files / f"{each}.json" for each in ("bench", "peers", "verify")}
    with pytest.raises(smla.DataError, match=message) as caught:
        smla.report(files / "r.html", **paths)
    assert caught.value.field and caught.value.got and caught.value.wanted
    assert "\n" not in str(caught.value) and not (files / "r.html").exists()


def test_files_that_begin_with_a_byte_order_mark(files):
    pytest.importorskip("matplotlib")
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY), ("config", V32)):
        (files / f"{name}.json").write_text(json.dumps(document), encoding="utf-8-sig")
    paths = {name: files / f"{name}.json" for name in ("bench", "peers", "verify")}
    report = smla.report(**paths, model=files / "config.json", memory=80)
    assert report.documents["bench"] == [BENCH] and report.documents["model"] == "config.json"


def test_files_that_are_not_there(files):
    pytest.importorskip("matplotlib")
    with pytest.raises(smla.IoError, match="nowhere.json: got No such file or directory, wanted a file"):
        smla.report(bench=files / "nowhere.json")
    with pytest.raises(smla.IoError, match="nowhere"):
        smla.report(model=files / "nowhere", bench=files / "bench.json")
    os.mkfifo(files / "fifo")
    with open(files / "large.json", "wb") as large:
        large.truncate(65 << 20)
    for name, error, got in (
        ("/dev/zero", smla.IoError, "no regular file"),
        ("fifo", smla.IoError, "no regular file"),
        (".", smla.IoError, "no regular file"),
        ("large.json", smla.DataError, f"{65 << 20} bytes, wanted at most"),
    ):
        for kind in ("bench", "verify", "peers"):
            with pytest.raises(error, match=f"{name}: got {got}"):
                smla.report(**{"bench": BENCH, "verify": VERIFY, kind: files / name})
    (files / "bench.json").write_bytes(b"\xff\xfe")
    with pytest.raises(smla.DataError, match="bench.json: got bytes that are not UTF-8"):
        smla.report(bench=files / "bench.json")


def command(*words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "smla", "report", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "python"), **environment},
        capture_output=True,
        text=True,
    )


def test_the_command_line(files):
    pytest.importorskip("matplotlib")
    out = files / "page.html"
    words = ["-o", out, "--bench", files / "bench.json", "--verify", files / "verify.json"]
    done = command(*words, "--peers", files / "peers.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert Page(out.read_text()).tags.count("figure") == 6
    assert command("--help").returncode == 0
    for bad, code, text in (
        (["--seconds", "0"], 2, "--seconds: got 0, wanted a positive number"),
        (["--bench", files / "no.json"], 3, "no.json: got No such file"),
        (["--model", files / "no.json"], 3, "no.json"),
        (
            [*words[2:], "-o", files / "no" / "x.html"],
            3,
            "x.html: got No such file or directory, wanted a file",
        ),
        (
            [*words[2:], "--bench", files / "peers.json", files / "config.json"],
            2,
            "config.json: results: got",
        ),
    ):
        done = command(*bad)
        assert done.returncode == code and text in done.stderr and "Traceback" not in done.stderr, done.stderr
        assert done.stderr.strip().splitlines()[-1].startswith("smla report:") and not done.stdout


def test_without_matplotlib(files):
    """The package works without the extra; what needs it says so in a line."""
    (files / "matplotlib.py").write_text("raise ImportError('none here')\n")
    path = os.pathsep.join([str(files), str(ROOT / "python")])
    done = command("-o", files / "x.html", PYTHONPATH=path, SMLA_TOOL="/nowhere")  # before any work
    assert done.returncode == 3 and not (files / "x.html").exists()
    assert done.stderr == "smla report: got no matplotlib, wanted matplotlib: pip install 'smla[report]'\n"
    code = "import smla; print(smla.bench(case='select', quick=True, seconds=0.01)._repr_html_())"
    table = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert table.returncode == 0 and "cpu_" in table.stdout and "aria-label" not in table.stdout, table.stderr


def test_cases():
    assert cases.size("V4 T1 H64 K128+512 fp8_584", "K") == (640, "V4 T1 H64 fp8_584")
    assert cases.size("V3.2 layer, context 131072", "context") == (131072, "V3.2 layer")
    assert cases.size("T1 N8192 k2048", "K") is None
    curves = cases.curves(BENCH["results"], "K")
    assert curves == {
        "attend": {
            "V3.2 T1 H128 fp8_656": [(128, 0.128), (2048, 2.048)],
            "V3.2 T16 H128 fp8_656": [(128, 2.048), (2048, 32.768)],
        }
    }
    assert cases.panels(curves["attend"]) == {
        "V3.2 fp8_656": {"T1 H128": [(128, 0.128), (2048, 2.048)], "T16 H128": [(128, 2.048), (2048, 32.768)]}
    }


def test_units():
    assert units.bytes_text(1023) == "1023 B" and units.bytes_text(1 << 40) == "1 TiB"
    assert units.rate_text(999.6) == "1 TFLOP/s" and units.rate_text(0.5) == "500 MFLOP/s"
    assert [units.time_text(ms) for ms in (0.0123, 1.5, 2500)] == ["12.3 µs", "1.5 ms", "2.5 s"]
    assert [units.tokens_text(n) for n in (100, 2048, 2176, 1 << 20)] == ["100", "2K", "2176", "1M"]


def test_a_document_of_bench_is_a_peer(files):
    """So that two builds or machines can be compared."""
    assert documents.peers(files / "bench.json")["name"] == "bench"


def test_documents_in_memory(files):
    """What smla.bench() gave stands for its file; what is neither is named."""
    for given in (BENCH, [BENCH]):
        made = smla.report(bench=smla.tools.BenchResults(BENCH) if given is BENCH else given, verify=VERIFY)
        assert made.documents["bench"] == [BENCH] and made.documents["verify"] == [VERIFY]
    for name in ("bench", "verify", "peers"):
        with pytest.raises(smla.InvalidArgument, match=f"{name}: got int, wanted a file, a document"):
            smla.report(**{"bench": BENCH, "verify": VERIFY, name: 3})
    with pytest.raises(smla.DataError, match="document: results: got nothing, wanted a list"):
        smla.report(bench={}, verify=VERIFY)
