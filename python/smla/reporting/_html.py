"""Pieces of HTML. Every text that is passed in is escaped; `Markup` is what is already HTML."""

import operator
from html import escape


class Markup(str):
    """HTML that may stand in a page as it is."""

    def __add__(self, other):
        return Markup(str(self) + str(text(other)))


def text(value):
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(name, *content, **attributes):
    """<name attribute="...">content</name>. class_ is the attribute class."""
    words = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{words}>{''.join(map(text, content))}</{name}>")


def table(rows, columns):
    """columns: {heading: key of the rows, or a function of a row}. "#heading" is aligned as numbers are."""

    def line(tag, cells):
        kinds = [{"class_": "number"} if name.startswith("#") else {} for name in columns]
        return element("tr", *(element(tag, cell, **kind) for cell, kind in zip(cells, kinds)))

    makers = [make if callable(make) else operator.itemgetter(make) for make in columns.values()]
    head = element("thead", line("th", [name.removeprefix("#") for name in columns]))
    body = element("tbody", *(line("td", [make(row) for make in makers]) for row in rows))
    return element("div", element("table", head, body), class_="scroll")


def folded(title, *content):
    """Closed on a screen, open on paper."""
    return element("details", element("summary", title), *content)


def badge(good):
    return element("span", "pass" if good else "FAIL", class_="good" if good else "bad")
