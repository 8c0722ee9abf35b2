"""What a kernel is specialised to, apart from its program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from polyopt import target as targets
from polyopt.classes import dataclass
from polyopt.picks import Pick
from polyopt.target import Target


@dataclass(frozen=True, slots=True)
class Options:
    """What a kernel is specialised to, apart from the program.

    numerics: "default", "strict" or "fast"
    dynamic:  names of the sizes that stay symbolic
    layouts:  byte strides per argument or result; None, or absent, for C-contiguous
    picks:    what a tuner decided, instead of the cost models; None: nothing, and nobody wants to know what was asked
    """

    numerics: str = "default"
    target: Target = field(default_factory=targets.host)
    dynamic: tuple[str, ...] = ()
    layouts: Mapping[str, tuple[int, ...] | None] = field(default_factory=dict)
    picks: tuple[Pick, ...] | None = None

    @property
    def is_strict(self) -> bool:
        """Whether sums run in the order of their indices."""
        return self.numerics == "strict"

    @property
    def is_on_gpu(self) -> bool:
        return self.target.gpu is not None
