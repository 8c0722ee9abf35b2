"""One PolyBench kernel: its equations, its loops, its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import polyopt as po

Inputs = tuple[Any, ...]
Array = np.ndarray


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel of the suite.

    name:   PolyBench's name for it
    op:     the equations
    loops:  the same arguments to the same results, in PolyBench's own order of execution
    inputs: arguments for a problem of about the given size; every extent is 1 at size 1, and extents that may
            differ do differ from size 2 on
    """

    name: str
    op: po.Op
    loops: Callable[..., Array | tuple[Array, ...]]
    inputs: Callable[[int, np.random.Generator], Inputs]


def extents(n: int) -> tuple[int, int, int, int]:
    """Four extents near n, mostly different, all 1 for n = 1."""
    return n, n + n // 2, n + n // 3, n + n // 4


def steps_for(n: int) -> int:
    """A few time steps: enough that blocking in time would show, few enough that the oracle is quick."""
    return min(n, 4)


def results(value: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    """One result or several, always as a tuple."""
    return value if isinstance(value, tuple) else (value,)
