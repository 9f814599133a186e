"""HTML elements. All text is escaped, except Markup, which is already HTML."""

import operator
from html import escape


class Markup(str):
    """Text that is already HTML."""

    def __add__(self, other):
        return Markup(str(self) + str(text(other)))


def text(value):
    return value if isinstance(value, Markup) else Markup(escape(str(value)))


def element(name, *content, **attributes):
    """Returns <name attribute="...">content</name>. class_ is the attribute class."""
    words = "".join(f' {key.rstrip("_")}="{escape(str(value))}"' for key, value in attributes.items())
    return Markup(f"<{name}{words}>{''.join(map(text, content))}</{name}>")


def table(rows, columns):
    """Returns a table. columns: {heading: key or function of a row}. "#heading" is right-aligned, for
    numbers.
    """

    def line(tag, cells):
        kinds = [{"class_": "number"} if name.startswith("#") else {} for name in columns]
        return element("tr", *(element(tag, cell, **kind) for cell, kind in zip(cells, kinds)))

    makers = [make if callable(make) else operator.itemgetter(make) for make in columns.values()]
    head = element("thead", line("th", [name.removeprefix("#") for name in columns]))
    body = element("tbody", *(line("td", [make(row) for make in makers]) for row in rows))
    return element("div", element("table", head, body), class_="scroll")


def folded(title, *content):
    """Returns a section that is closed on screens and open in print."""
    return element("details", element("summary", title), *content)


def badge(good):
    return element("span", "pass" if good else "FAIL", class_="good" if good else "bad")
