"""The page of smla.report as a browser shows it: nothing is fetched, cut off or invisible."""

import pytest
import smla
from browser import probed, screenshot
from test_report import BENCH, PEERS, V32, VERIFY, json

SERIES = {False: (0x00, 0x72, 0xB2), True: (0x56, 0xB4, 0xE9)}  # --series-1 by day and by night


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    for name, document in (("bench", BENCH), ("peers", PEERS), ("verify", VERIFY), ("config", V32)):
        (folder / f"{name}.json").write_text(json.dumps(document))
    files = {name: folder / f"{name}.json" for name in ("bench", "peers", "verify")}
    smla.report(folder / "report.html", **files, model=folder / "config.json")
    return folder / "report.html"


@pytest.mark.parametrize("size", [(1280, 1600), (560, 900), (400, 800)], ids=["wide", "narrow", "phone"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_layout(page, size, dark):
    seen = probed(page, size, dark)
    assert seen["width"] == size[0] and seen["smallest"] >= 12
    assert seen["heads"] == ["smla report", "This machine", "Selected kernels", "Speed",
                             "Other libraries", "Accuracy", "Capacity"]  # fmt: skip
    assert seen["too_wide"] <= 0 and seen["outside"] == [] and seen["loaded"] == []
    assert 100 < seen["tallest"] < 1000


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_pixels(page, dark):
    """Paper, ink and the first series are where they should be, in the colours of the scheme."""
    pixels = screenshot(page, dark=dark)
    brightness = pixels.mean(axis=2)
    paper = brightness[:, :20].mean()
    assert paper < 40 if dark else paper > 250
    ink = brightness[:400] > 200 if dark else brightness[:400] < 60
    assert ink.sum() > 1000  # the title
    assert (abs(pixels - SERIES[dark]).max(axis=2) < 8).sum() > 2000
