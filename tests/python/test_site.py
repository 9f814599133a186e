"""The web site of scripts/site: its links, and its pages in a browser."""

import importlib.machinery
import importlib.util
import json
import re

import pytest
from browser import probed
from conftest import ROOT

HTML = ROOT / "build/site/html"


@pytest.fixture(scope="module")
def site():
    """scripts/site as a module."""
    if not (ROOT / "scripts/site").exists():
        pytest.skip("not in a clone")
    loader = importlib.machinery.SourceFileLoader("site_script", str(ROOT / "scripts/site"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("site_script", loader))
    loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def html():
    if not (HTML / "index.html").exists():
        pytest.skip("no site was built (scripts/site)")
    return HTML


def test_links_lead_to_pages(site):
    page, linked = site.Path("docs/dataflow.md"), set()
    text = "[a](../src/plan/README.md#x) [b](../LICENSE) [c](kernels/cpu.md) [d](#here) [e](https://x.y/z)\n"
    code = "```\n[f](nowhere.md)\n```\n"
    wanted = (
        "[a](../src/plan/README.md#x) [b](../LICENSE.md) [c](kernels/cpu.md) [d](#here) [e](https://x.y/z)\n"
    )
    assert site.with_links_to_pages(text + code, page, linked) == wanted + code
    assert {str(each) for each in linked} == {"src/plan/README.md", "LICENSE", "docs/kernels/cpu.md"}
    assert site.with_links_to_pages("[a](../include/smla)", page, linked) == "[a](../include/smla/README.md)"
    picture = "![a](performance.svg)"
    assert site.with_links_to_pages(picture, site.Path("docs/performance.md"), linked) == picture
    log = "see the [log](log/cpu.md#x), [a](cpu.md)"  # logs have no pages
    kernels = site.Path("docs/kernels/cuda_score.md")
    assert site.with_links_to_pages(log, kernels, linked) == "see the log, [a](cpu.md)"
    assert not [f for f in site.tracked() if "log" in f.parts]
    for bad in ("[a](nowhere.md)", "[a](../../outside.md)"):
        with pytest.raises(SystemExit, match="docs/dataflow.md: the link to .* leads nowhere"):
            site.with_links_to_pages(bad, page, linked)


def test_a_file_is_shown_as_it_is(site):
    text, held = site.shown(site.Path("docs/glossary.md"), [])
    assert not held and (ROOT / "docs/glossary.md").read_text() in text
    fenced, _ = site.shown(site.Path("docs/dataflow.md"), [])  # has fences of its own
    assert re.search(r"^````+text$", fenced, re.M)
    files = [site.Path(name) for name in ("a/b.h", "a/c/d.h", "e.h")]
    listing, held = site.shown(site.Path("include"), [site.Path("include/smla/types.h"), *files])
    assert "* [smla](smla/README.md)" in listing and [str(each) for each in held] == ["include/smla"]


def test_every_document_and_header_is_there(site, html):
    files = site.tracked()
    for file in [*site.documents(files), *(f for f in files if f.parts[:2] == ("include", "smla"))]:
        name = site.page_of(file).with_suffix(".html")
        place = html / (name.with_name("index.html") if name.name == "README.html" else name)
        assert place.exists(), file
    found = json.loads((html / "search/search_index.json").read_text())["docs"]
    assert any("smla_attend" in each["text"] for each in found)


@pytest.mark.parametrize("page,words", [
    ("index.html", "smla"),
    ("docs/python/stages.html", "Stages"),
    ("docs/support-matrix.html", ""),
    ("include/smla/stages_attend.h.html", "include/smla/stages_attend.h"),
])  # fmt: skip
def test_pages_in_a_browser(html, page, words):
    seen = probed(html / page)
    assert seen["too_wide"] <= 0 and words.lower() in " ".join(seen["heads"]).lower(), seen
    assert seen["loaded"] and all(name.startswith("file:") for name in seen["loaded"]), seen["loaded"]
    (html / page).with_name(f"probed_{(html / page).name}").unlink()


def test_dark_mode(html):
    light, dark = (probed(html / "docs/glossary.html", dark=dark)["paper"] for dark in (False, True))
    (html / "docs/probed_glossary.html").unlink()
    brightness = [sum(map(float, re.findall(r"[\d.]+", color)[:3])) for color in (light, dark)]
    assert brightness[0] > 600 and brightness[1] < 200, (light, dark)
