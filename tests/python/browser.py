"""Pages in a headless browser (Debian: chromium): what it lays out, and what it paints. No network."""

import html
import json
import re
import shutil
import subprocess

import pytest

# Runs in the page when it is laid out; what it finds is read from the DOM.
PROBE = """
<script>
addEventListener("load", () => {
  const root = document.documentElement, outside = [];
  document.querySelectorAll("details").forEach(each => each.open = true);
  const inside = document.querySelectorAll("figure svg text, figure span, figcaption, figure p");
  for (const text of inside) {
    const own = text.getBoundingClientRect(), box = text.closest("svg, figure").getBoundingClientRect();
    if (own.left < box.left - 1 || own.right > box.right + 1 || own.top < box.top - 1 ||
        own.bottom > box.bottom + 1) outside.push(text.textContent);
  }
  const note = document.createElement("pre");
  note.id = "probe";
  note.textContent = JSON.stringify({
    too_wide: root.scrollWidth - root.clientWidth, outside,
    heads: [...document.querySelectorAll("h1, h2")].map(head => head.textContent),
    loaded: [...document.querySelectorAll("[src], link:not([rel=canonical])")]
      .map(each => each.src || each.href),
    paper: getComputedStyle(document.body).backgroundColor,
    width: innerWidth,
    smallest: Math.min(...[...inside].filter(each => each.textContent)
      .map(each => parseFloat(getComputedStyle(each).fontSize))),
    tallest: Math.max(0, ...[...document.querySelectorAll("figure")].map(each => each.clientHeight)),
  });
  document.body.append(note);
});
</script>
"""

FRAME = """<iframe style="width: {}px; height: {}px; border: 0" srcdoc="{}"></iframe>
<script>
addEventListener("load", () =>
  document.body.append(document.querySelector("iframe").contentDocument.getElementById("probe")));
</script>
"""


def program():
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    pytest.skip("no browser (Debian: chromium)")


def _run(page, *words, size=(1200, 1600)):
    command = [program(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", f"--window-size={size[0]},{size[1]}", *words]
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def probed(page, size=(1200, 1600), dark=False):
    """Returns the result of PROBE in a copy of the page. Uses a frame, because the minimum width of
    a window is 500 pixels.
    """
    copy = page.with_name(f"probed_{page.name}")
    text = page.read_text().replace("</body>", PROBE + "</body>")
    if size[0] < 500:
        text = FRAME.format(*size, html.escape(text))
    copy.write_text(text)
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    dom = _run(copy, "--dump-dom", *scheme, size=size)
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-2000:]
    return json.loads(html.unescape(found.group(1)))


def screenshot(page, size=(1200, 3000), dark=False):
    """The pixels, [height, width, 3] from 0 to 255."""
    image = pytest.importorskip("PIL.Image")
    np = pytest.importorskip("numpy")
    out = page.with_suffix(".dark.png" if dark else ".png")
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(page, f"--screenshot={out}", *scheme, size=size)
    return np.asarray(image.open(out).convert("RGB")).astype(int)
