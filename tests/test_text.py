"""An outline holds every line of a text, and each format holds every entry of the outline."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyopt.text import FORMATS, Entry, fragment, outline, render

NEST = 'parallel for i in range(8):\n    y[i] = 0\n    for k in range(4):\n        y[i] += x[i, k] < "a" & b\n'


def flat(entries: tuple[Entry, ...]) -> Iterator[str]:
    for entry in entries:
        yield entry.text
        yield from flat(entry.children)


def test_indentation_becomes_structure() -> None:
    (loop,) = outline(NEST)
    assert loop.text == "parallel for i in range(8):"
    assert [child.text for child in loop.children] == ["y[i] = 0", "for k in range(4):"]
    assert [child.text for child in loop.children[1].children] == ['y[i] += x[i, k] < "a" & b']


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["a", "b c", "{ x }"])), max_size=12))
def test_every_line_is_in_the_outline_once_and_in_order(lines: list[tuple[int, str]]) -> None:
    text = "\n".join(" " * depth + label for depth, label in lines)
    assert list(flat(outline(text))) == [label for _, label in lines]


def test_text_is_what_the_printer_wrote() -> None:
    assert render("loops", NEST, "text") == NEST.rstrip("\n")


def test_json_holds_the_text_and_the_outline() -> None:
    value = json.loads(render("loops", NEST, "json"))
    assert value["stage"] == "loops" and value["text"] == NEST
    assert value["outline"][0]["children"][0] == {"text": "y[i] = 0"}


def test_dot_has_a_node_and_an_edge_for_each_line() -> None:
    dot = render("loops", NEST, "dot")
    assert dot.count("->") == 4
    assert dot.count("[label=") == 5
    assert r"\"a\"" in dot


def test_html_is_well_formed_and_escaped() -> None:
    page = render("loops", NEST, "html")
    assert "&lt; &quot;a&quot; &amp; b" in page
    open_tags: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Balance().feed(page)
    assert not open_tags


@pytest.mark.parametrize("form", FORMATS)
def test_an_empty_text_has_every_format(form: str) -> None:
    assert isinstance(render("fusion", "", form), str)  # type: ignore[arg-type]  # a member of FORMATS


def test_a_fragment_for_a_notebook_folds_and_is_escaped() -> None:
    piece = fragment("a < b", NEST)
    assert piece.startswith("<div") and "<html" not in piece
    assert "<b>a &lt; b</b>" in piece
    assert piece.count("<details open") == piece.count("</details>") == 2
    assert "&lt; &quot;a&quot; &amp; b" in piece
