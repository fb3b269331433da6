"""Building blocks of the page: elements that are balanced and escaped by construction."""

from __future__ import annotations

from html import escape

from kareus.report.data import Source

# SVG shapes carry no content of their own; XHTML-style closing is valid for them in HTML too.
_EMPTY = frozenset({"path", "rect", "circle", "line", "polygon", "polyline", "input", "meta", "br"})


def text(value: str) -> str:
    """Escape text for use between tags."""
    return escape(value, quote=False)


def el(element: str, /, *children: str, **attributes: str | int | None) -> str:
    """Return one element; children are markup already, attributes are escaped.

    A trailing underscore of an attribute name is dropped (`class_`), inner ones become hyphens
    (`aria_label`); None leaves the attribute out and "" writes it bare.
    """
    parts = [element]
    for key, value in attributes.items():
        if value is None:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value == "" else f'{key}="{escape(str(value))}"')
    if element in _EMPTY and not children:
        return f"<{' '.join(parts)}/>"
    return f"<{' '.join(parts)}>{''.join(children)}</{element}>"


def source_tag(source: Source) -> str:
    """Return the small mark that says where a figure comes from."""
    return el("span", source.value, class_=f"tag {source.value}")


def table(
    caption: str, head: list[str], rows: list[list[str]], *, numeric: frozenset[int] = frozenset()
) -> str:
    """Return a table that turns into stacked cards on a narrow screen.

    Args:
        caption: read by screen readers, not shown.
        head: column names, plain text.
        rows: cells, markup. numeric: columns set in tabular figures, right-aligned.
    """

    def cell(column: int, content: str) -> str:
        kind = "num" if column in numeric else None
        if column == 0:
            return el("th", content, scope="row", class_=kind)
        return el("td", content, class_=kind, data_label=head[column])

    header = el(
        "thead",
        el(
            "tr",
            *(
                el("th", text(h), scope="col", class_="num" if i in numeric else None)
                for i, h in enumerate(head)
            ),
        ),
    )
    body = el("tbody", *(el("tr", *(cell(i, c) for i, c in enumerate(row))) for row in rows))
    return el("table", el("caption", text(caption)), header, body)
