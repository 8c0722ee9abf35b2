"""Extents of symbolic sizes: their text."""

from __future__ import annotations

import pytest

from polyopt.runtime.extent import Extent, evaluate, text


@pytest.mark.parametrize(
    ("extent", "expected"),
    [
        (0, "0"),
        (-3, "-3"),
        ("N", "N"),
        (("mul", ("add", "N", 1), 4), "4*N + 4"),
        (("sub", 1, ("mul", "N", "M")), "-M*N + 1"),
        (("sub", "N", "N"), "0"),
        (("neg", ("sub", "N", 2)), "-N + 2"),
        (("mul", ("add", "N", 2), ("sub", "N", 2)), "N*N - 4"),
        (("maximum", ("mul", 4, "N"), 0), "4*N"),
        (("maximum", ("sub", "N", 1), 0), "max(N - 1, 0)"),
        (("mul", ("floordiv", ("add", "N", 63), 64), 64), "64*((N + 63)//64)"),
        (("add", ("mod", "N", 4), ("floordiv", "N", 4)), "(N%4) + (N//4)"),
    ],
)
def test_what_it_says_is_what_it_evaluates_to(extent: Extent, expected: str) -> None:
    assert text(extent) == expected
    for size in (0, 1, 5, 64, 130):
        value = eval(expected, {"N": size, "M": 3, "max": max})  # noqa: S307  # written above
        assert value == evaluate(extent, {"N": size, "M": 3})
