"""Figures of matplotlib as SVG that lives inside a page: its text stays text, its colours follow the page."""

import functools
import re
from html import escape
from io import StringIO

from ..errors import Unsupported

# Colours that are drawn, and the custom properties of the page that take their place. The series are those of
# Okabe and Ito, which colour-blind readers tell apart.
THEME = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--rule)",
    "#0072b2": "var(--series-1)",
    "#d55e00": "var(--series-2)",
    "#009e73": "var(--series-3)",
    "#cc79a7": "var(--series-4)",
    "#e69f00": "var(--series-5)",
    "#56b4e9": "var(--series-6)",
}
INK, MUTED, RULE, *SERIES = THEME
_RC = {
    "svg.fonttype": "none",
    "svg.hashsalt": "smla",  # the same figure has the same bytes
    "text.parse_math": False,  # a $ in a name is a $
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": RULE,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": False,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "font.size": 9,
    "font.family": "DejaVu Sans",  # what comes with matplotlib: it measures text, the page sets its own
}


def needs_matplotlib():
    """One clear line where the extra is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        wanted = "matplotlib: pip install 'smla[report]'"
        raise Unsupported(
            f"smla report: got no matplotlib, wanted {wanted}", "matplotlib", "none", wanted
        ) from None


def color(number):
    return SERIES[number % len(SERIES)]


def styled(draw):
    """A function that draws: matplotlib's settings hold while it runs, and no longer."""

    @functools.wraps(draw)
    def drawn(*arguments):
        needs_matplotlib()
        from matplotlib import rc_context

        with rc_context(_RC):
            return draw(*arguments)

    return drawn


class Drawing:
    """One figure with one axes, in a function that is `styled`. bases: of logarithmic axes, {"x": 2}."""

    def __init__(self, title, width=4.6, height=3.2, **bases):
        from matplotlib.figure import Figure

        self.title, self.tips = title, []
        self.figure = Figure(figsize=(width, height), layout="constrained")
        self.axes = self.figure.add_subplot()
        self.axes.set_title(title)
        for name, base in bases.items():
            getattr(self.axes, f"set_{name}scale")("log", base=base)

    def tip(self, artist, text):
        """Gives an artist a tooltip."""
        artist.set_gid(f"tip{len(self.tips)}")
        self.tips.append(text)

    def note(self, text, place, shift, **more):
        """Text beside a place. shift: in points."""
        self.axes.annotate(text, place, xytext=shift, textcoords="offset points", fontsize=8, **more)

    def rows(self, names):
        """One row for each name, downwards."""
        self.axes.set_yticks(range(len(names)), names)
        self.axes.invert_yaxis()
        self.axes.grid(axis="y", visible=False)

    def legend(self, columns=3):
        """Below the axes, where it covers nothing."""
        self.figure.legend(loc="outside lower center", ncols=columns, handletextpad=0.4, columnspacing=1.2)

    def svg(self):
        """The <svg> element; a screen reader hears the title."""
        out = StringIO()
        self.figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
        return _embedded(out.getvalue(), self.title, self.tips)


_count = 0


def _embedded(text, title, tips):
    """Cuts what only a file of its own needs. Identifiers get a prefix: a page holds many figures."""
    global _count
    _count += 1
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL)
    for number, tip in enumerate(tips):
        text = text.replace(f'<g id="tip{number}">', f'<g id="tip{number}"><title>{escape(tip)}</title>', 1)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>f{_count}-", text)
    text = re.sub("|".join(THEME), lambda match: THEME[match.group()], text)
    label = escape(title).replace("\\", r"\\")
    opening = (
        rf'<svg viewBox="\1" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" aria-label="{label}">'
    )
    return re.sub(r'<svg [^>]*viewBox="([^"]*)"[^>]*>', opening, text, count=1)
