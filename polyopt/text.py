"""Any stage's text in other formats: JSON, Graphviz, and a page of HTML that folds.

Every printer of the chain shows structure by indentation. An outline is that structure read back, so one reader
serves all stages: an entry for each line, its deeper lines below it.
"""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Literal

from polyopt.classes import dataclass

Format = Literal["text", "json", "dot", "html"]
FORMATS: tuple[Format, ...] = ("text", "json", "dot", "html")


@dataclass(frozen=True, slots=True)
class Entry:
    """A line without its indentation, and the lines that are indented below it."""

    text: str
    children: tuple[Entry, ...] = ()


def render(stage: str, text: str, form: Format) -> str:
    """The text of a stage as `form`. JSON holds the text itself beside the outline."""
    return _WRITERS[form](stage, text)


def outline(text: str) -> tuple[Entry, ...]:
    """The top entries of `text`. Blank lines are left out; a line that returns half-way belongs to the nearest."""
    lines = [(len(line) - len(line.lstrip()), line.strip()) for line in text.splitlines() if line.strip()]
    return tuple(_entries(lines))


def _entries(lines: list[tuple[int, str]]) -> Iterator[Entry]:
    start = 0
    while start < len(lines):
        depth, label = lines[start]
        end = start + 1
        while end < len(lines) and lines[end][0] > depth:
            end += 1
        yield Entry(label, tuple(_entries(lines[start + 1 : end])))
        start = end


def _as_text(_: str, text: str) -> str:
    return text.rstrip("\n")


# --- JSON -------------------------------------------------------------------------------------------------------


def _as_json(stage: str, text: str) -> str:
    value = {"stage": stage, "text": text, "outline": [_as_object(entry) for entry in outline(text)]}
    return json.dumps(value, indent=2, ensure_ascii=False)


def _as_object(entry: Entry) -> dict[str, object]:
    if not entry.children:
        return {"text": entry.text}
    return {"text": entry.text, "children": [_as_object(child) for child in entry.children]}


# --- Graphviz ---------------------------------------------------------------------------------------------------


def _as_dot(stage: str, text: str) -> str:
    lines = [f"digraph {json.dumps(stage)} {{", '  node [shape=box, fontname="monospace"];']
    lines += [f"  n0 [label={json.dumps(stage)}];", *_dot_entries(outline(text), parent="n0")]
    return "\n".join([*lines, "}"])


def _dot_entries(entries: Iterable[Entry], parent: str) -> Iterator[str]:
    for number, entry in enumerate(entries):
        name = f"{parent}_{number}"
        yield f"  {name} [label={_dot_label(entry.text)}];"
        yield f"  {parent} -> {name};"
        yield from _dot_entries(entry.children, name)


def _dot_label(text: str) -> str:
    """A quoted label; `\\l` keeps it to the left."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}\\l"'


# --- HTML -------------------------------------------------------------------------------------------------------

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>{title}</title>
<style>
body {{ font: 14px/1.5 ui-monospace, monospace; margin: 2em; color: #222; background: #fff; }}
details, p {{ margin: 0 0 0 1.5em; white-space: pre-wrap; }}
summary {{ margin-left: -1.1em; cursor: pointer; }}
h1 {{ font-size: 1.1em; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>"""


def html_page(title: str, body: str) -> str:
    """A page that needs no other file, around a fragment of HTML."""
    return _PAGE.format(title=html.escape(title), body=body)


def fragment(title: str, text: str) -> str:
    """A piece of HTML for a page that is already there, such as a notebook: the text of a stage, which folds."""
    body = "\n".join(_html_entries(outline(text), _INLINE_STYLE))
    return f'<div style="{_FONT}"><b>{html.escape(title)}</b>\n{body}\n</div>'


_FONT = "font: 14px/1.5 ui-monospace, monospace"
_INLINE_STYLE = ' style="margin: 0 0 0 1.5em; white-space: pre-wrap"'


def _as_html(stage: str, text: str) -> str:
    return html_page(stage, "\n".join(_html_entries(outline(text))))


def _html_entries(entries: Iterable[Entry], style: str = "") -> Iterator[str]:
    """style: an attribute for each element, with a blank before it"""
    for entry in entries:
        label = html.escape(entry.text)
        if not entry.children:
            yield f"<p{style}>{label}</p>"
            continue
        yield f"<details open{style}><summary>{label}</summary>"
        yield from _html_entries(entry.children, style)
        yield "</details>"


_WRITERS: Mapping[Format, Callable[[str, str], str]] = {
    "text": _as_text,
    "json": _as_json,
    "dot": _as_dot,
    "html": _as_html,
}
