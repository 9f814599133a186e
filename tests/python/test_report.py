"""smla.report and smla.bench as a notebook meets them: the page, its figures, and what it refuses."""

import html
import html.parser
import json
import os
import re
import subprocess
import sys

import pytest
import smla
from conftest import ROOT
from smla import _units as units
from smla.reporting import _cases as cases
from smla.reporting import _documents as documents
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
    folder = tmp_path_factory.mktemp("report")
    paths = {name: folder / f"{name}.json" for name in ("bench", "peers", "verify")}
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY)):
        paths[name].write_text(json.dumps(document))
    (folder / "config.json").write_text(json.dumps(V32))
    return smla.report(folder / "r.html", **paths, model=folder, memory=80), folder / "r.html"


def test_a_model_in_memory(made, tmp_path):
    """A dict gives what its file gives, under the name of its type; what is neither is named."""
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
    # Charts: times and stages of decode steps; time by T and by K; arithmetic and bytes; the peer.
    assert page.tags.count("figure") == 2 + 2 + 2 + 1 and page.tags.count("svg") == 0


def test_what_files_say_is_text(made):
    page = Page(made[0].html)
    assert page.tags.count("script") == 1 and "b" not in page.tags and "i" not in page.tags
    seen = " ".join(page.texts)
    for words in ("Test <b>CPU</b> & co", "$x^{$", "k<1>", "k<2>", "_Peer <i>&amp;</i> $y$", "alert(1)"):
        assert words in seen, words
    assert PEERS["name"] in [text.strip() for text in page.texts]  # in the legend


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


def bars_of(page, title):
    """Returns [(label, width in percent, value, spread)] of the chart with this title."""
    (figure,) = [
        each
        for each in re.findall(r"<figure>.*?</figure>", page, re.DOTALL)
        if f"<figcaption>{title}" in each
    ]
    rows = re.findall(
        r'<span class="label">(.*?)</span>.*?style="width:([\d.]+)%"></span>(.*?)</span>'
        r'<span class="value">(.*?)</span>',
        figure,
    )
    return [
        (label, float(width), value, re.findall(r"left:([\d.]+)%;width:([\d.]+)%", spread))
        for label, width, spread, value in rows
    ]


def test_charts(made):
    """Bars begin at 0, with lengths proportional to their values. The axis names quantity and unit."""
    page = made[0].html
    bars = bars_of(page, "attend: time against listed rows per token")
    assert [(label, value) for label, _, value, _ in bars] == [
        ("V3.2 T1 H128 fp8_656, K 128", "128 µs"),
        ("V3.2 T1 H128 fp8_656, K 2K", "2.05 ms"),
        ("V3.2 T16 H128 fp8_656, K 128", "2.05 ms"),
        ("V3.2 T16 H128 fp8_656, K 2K", "32.8 ms"),
    ]
    assert [width for _, width, _, _ in bars] == [0.39, 6.25, 6.25, 100]
    assert page.count('<p class="axis">milliseconds</p>') == 3
    rates = {label: (width, value) for label, width, value, _ in bars_of(page, "attend: arithmetic")}
    assert rates["measured peak, bf16 dot products"] == (100, "400 GFLOP/s")
    assert rates["V3.2 T16 H128 K128 fp8_656"] == (29, "116 GFLOP/s")
    ours, theirs = bars_of(page, "smla and _Peer")
    assert (ours[1], theirs[1], theirs[2]) == (20, 100, "640 µs, 5x")


def test_the_spread_and_the_load_are_shown():
    rows = [{**row, "min_ms": 0.5 * row["ms"], "max_ms": 2 * row["ms"]} for row in BENCH["results"]]
    bench = {**BENCH, "results": rows, "load_average": 1.7, "busy": "3 <threads>", "machine": {"cores": 2}}
    page = smla.reporting.bench_page(bench)
    for _, width, _, spread in bars_of(page, "attend: time against listed rows per token"):
        ((left, long),) = spread
        assert float(left) == pytest.approx(width / 2, abs=0.01)
        assert float(long) == pytest.approx(1.5 * width, abs=0.02)
    assert page.count("milliseconds; line: minimum to maximum") == 3
    assert "Load of the machine before the run: 1.7 on 2 cores." in page
    assert "The machine was busy; times may be too long: 3 &lt;threads&gt;." in page
    assert "busy" not in smla.reporting.bench_page(BENCH)
    assert "Load of the machine before the run: unknown." in smla.reporting.bench_page(BENCH)


MODELS = [
    {"model": "deepseek-v4-flash", "layers": 43, "tokens": 1, "context": 16384, "ms": 20.0},
    {"model": "deepseek-v3.2", "layers": 61, "tokens": 4, "context": 16384, "ms": 50.0},
]


def test_tokens_per_second_of_the_chosen_model_are_the_headline(made):
    given = {"bench": {**BENCH, "models": MODELS}, "verify": VERIFY}
    tile = r'<div class="tiles"><div class="tile"><span class="name">(.*?)</span><strong>(.*?)</strong>'
    chosen = re.search(tile, smla.report(**given, model=V32, memory=80).html)
    assert chosen.groups() == ("Tokens per second, deepseek-v3.2", "80")  # 4 tokens in 50 ms
    assert re.search(tile, smla.report(**given).html).groups() == (
        "Tokens per second, deepseek-v4-flash",
        "50",
    )
    short = {**V32, "num_hidden_layers": 7}  # not a measured model
    assert re.search(tile, smla.report(**given, model=short, memory=80).html)[2] == "not measured"
    assert re.search(tile, made[0].html)[1] == "Decode step of one layer"  # a file without models
    for bad, text in (({"ms": 0}, "got 0"), ({"layers": "x"}, 'got "x"'), ({"model": 3}, "got 3")):
        with pytest.raises(smla.DataError, match=rf"models\[0\].{next(iter(bad))}: {text}"):
            smla.report(bench={**BENCH, "models": [{**MODELS[0], **bad}]}, verify=VERIFY)


def check_decode_steps(page, rows):
    """Charts of a page for a document of `smla bench`: the segments are the stages, each once, and fill the
    bar. The time of a bar is the time of the step, as in the tile at the top of the page."""
    steps = [row for row in rows if row["stage"] == "decode"]
    assert steps
    if "tiles" in page.partition("</style>")[2]:
        assert f"<strong>{units.time_text(steps[0]['ms'])}</strong>" in page
    longest = max(row.get("max_ms", row["ms"]) for row in steps)
    for (label, width, value, _), row in zip(bars_of(page, "Time of a step"), steps, strict=True):
        assert (label, value) == (row["case"], units.time_text(row["ms"]))
        assert width == pytest.approx(100 * row["ms"] / longest, abs=0.01)
    (figure,) = [each for each in re.findall(r"<figure>.*?</figure>", page) if "Stages of a step" in each]
    for row in steps:
        title = rf'style="width:([\d.]+)%" title="{re.escape(html.escape(row["case"]))}, (.*?): \d+ %"'
        found = {html.unescape(stage): float(width) for width, stage in re.findall(title, figure)}
        assert sum(found.values()) == pytest.approx(100, abs=0.1) and "sum" not in found
        parts = {
            each["stage"]: each["ms"] for each in rows if each["case"] == row["case"] and each.get("part")
        }
        for stage, ms in parts.items():
            if stage != "sum" and ms > 0.05 * row["ms"]:
                whole = max(row["ms"], sum(ms for stage, ms in parts.items() if stage != "sum"))
                assert found[stage] == pytest.approx(100 * ms / whole, abs=0.1), stage


def test_a_recorded_run():
    """tests/python/bench_quick.json is a document of `smla bench --quick --json` from two busy cores."""
    bench = json.loads((ROOT / "tests/python/bench_quick.json").read_text())
    rows = bench["results"]
    page = smla.reporting.bench_page(bench)
    check_decode_steps(page, rows)
    whole = next(row["ms"] for row in rows if row["stage"] == "decode")
    step, stages = cases.steps(rows)["V3.2 layer, context 16384"]
    assert (step["ms"], sum(stages.values())) == (whole, pytest.approx(whole))
    assert stages["absorb"] == 11.18137 and stages["other"] == pytest.approx(5.0343, abs=1e-3)
    Page(page)


def test_bench_and_defaults(monkeypatch):
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
        ("bench", "[" * 100000, "bench.json: got an unreadable document, wanted a JSON document"),
        ("bench", "[]", r"bench.json: got \[\], wanted an object"),
        ("bench", '{"host": []}', "bench.json: results: got nothing, wanted a list"),
        ("bench", '{"results": []}', "bench.json: results: got none, wanted at least one"),
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
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY), ("config", V32)):
        (files / f"{name}.json").write_text(json.dumps(document), encoding="utf-8-sig")
    paths = {name: files / f"{name}.json" for name in ("bench", "peers", "verify")}
    report = smla.report(**paths, model=files / "config.json", memory="80GiB")
    assert report.documents["bench"] == [BENCH] and report.documents["model"] == "config.json"


def test_files_that_are_not_there(files):
    with pytest.raises(smla.IoError, match="nowhere.json: cannot open the file: No such file"):
        smla.report(bench=files / "nowhere.json")
    with pytest.raises(smla.IoError, match="nowhere"):
        smla.report(model=files / "nowhere", bench=files / "bench.json")
    os.mkfifo(files / "fifo")
    with open(files / "large.json", "wb") as large:
        large.truncate(65 << 20)
    for name, error, got in (
        ("/dev/zero", smla.IoError, "not a regular file"),
        ("fifo", smla.IoError, "not a regular file"),
        (".", smla.IoError, "not a regular file"),
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
    out = files / "page.html"
    words = ["-o", out, "--bench", files / "bench.json", "--verify", files / "verify.json"]
    done = command(*words, "--peers", files / "peers.json")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{out}\n", "")
    assert Page(out.read_text()).tags.count("figure") == 7
    assert command("--help").returncode == 0
    for bad, code, text in (
        (["--seconds", "0"], 2, "--seconds: got 0, wanted a positive number"),
        (["--bench", files / "no.json"], 3, "no.json: cannot open the file: No such file"),
        (["--model", files / "no.json"], 3, "no.json"),
        (
            [*words[2:], "-o", files / "no" / "x.html"],
            3,
            "x.html: cannot write the file: No such file or directory",
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


def test_cases():
    assert cases.size("V4 T1 H64 K128+512 fp8_584", "K") == (640, "V4 T1 H64 fp8_584")
    assert cases.size("V3.2 layer, context 131072", "context") == (131072, "V3.2 layer")
    assert cases.size("T1 N8192 k2048", "K") is None
    curves = cases.curves(BENCH["results"], "K")
    times = {
        rest: [(size, row["ms"]) for size, row in points] for rest, points in curves.pop("attend").items()
    }
    assert not curves and times == {
        "V3.2 T1 H128 fp8_656": [(128, 0.128), (2048, 2.048)],
        "V3.2 T16 H128 fp8_656": [(128, 2.048), (2048, 32.768)],
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
