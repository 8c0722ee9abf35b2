"""The pytest plugin: the fixture `polyopt_check`, which holds an op against the reference.

It imports nothing of polyopt until the fixture is used, since pytest loads it in every run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from polyopt.testing.check import Checker


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("polyopt")
    group.addoption(
        "--polyopt-target",
        metavar="NAMES",
        help="targets on which polyopt_check runs each op, separated by commas: cpu,cuda",
    )
    group.addoption(
        "--polyopt-seed", metavar="N", type=int, default=0, help="seed of polyopt_check's random inputs (default: 0)"
    )


@pytest.fixture
def polyopt_check(request: pytest.FixtureRequest) -> Checker:
    """Check an op: `polyopt_check(op, M=33, N=17)` or `polyopt_check(op, x, w, expected=...)`."""
    from polyopt.testing.check import Checker

    targets = request.config.getoption("--polyopt-target")
    names = tuple(name.strip() for name in targets.split(",") if name.strip()) if targets else (None,)
    return Checker(names, request.config.getoption("--polyopt-seed"))
