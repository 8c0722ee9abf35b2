"""What is compiled: a program with all that decides its code, and the names under which its kernel is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any, Literal, TypeAlias

from polyopt import cache as disk
from polyopt import settings
from polyopt import target as targets
from polyopt.classes import dataclass
from polyopt.dsl import ir
from polyopt.dsl.expr import Size
from polyopt.dsl.ir import Program
from polyopt.errors import ArgumentError, Span
from polyopt.picks import Pick
from polyopt.runtime.arrays import Layout
from polyopt.target import Target

Picks: TypeAlias = tuple[Pick, ...]
Numerics = Literal["default", "strict", "fast"]
NUMERICS: tuple[Numerics, ...] = ("default", "strict", "fast")


@dataclass(frozen=True, slots=True)
class Choices:
    """What `@po.op(...)` was told. dynamic: names of sizes that stay symbolic; True for all of them."""

    dynamic: tuple[str, ...] | bool = False
    target: str | Target | None = None
    numerics: Numerics = "default"
    tune: bool = False


@dataclass(frozen=True, eq=False)
class Problem:
    """A program and all that decides its code.

    program:       ranges not resolved; sizes that are numbers already substituted
    dynamic:       the sizes that stay symbolic
    layouts:       byte strides of arguments and results that are not C-contiguous
    result_shapes: shapes that `out=` arrays have, for a check before anything is compiled; by result
    """

    program: Program
    dynamic: tuple[str, ...]
    layouts: Mapping[str, Layout]
    target: Target
    numerics: Numerics
    result_shapes: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)

    def key(self, picks: Picks | None) -> str:
        """The name of the kernel that a tuner's picks, or none, lead to."""
        return disk.key(
            self.target,
            picks=None if picks is None else [str(pick) for pick in picks],
            program=self._text,
            dynamic=self.dynamic,
            layouts=sorted(self.layouts)
            if self.program.sizes
            else sorted(self.layouts.items()),  # else read at each call
            numerics=self.numerics,
            verify=settings.current().verify,
            places=[dataclasses.astuple(place) for place in _checked_places(self.program)],
        )

    @cached_property
    def tuning_key(self) -> str:
        """The name of the problem in tuning records: the same for every version of polyopt and on every machine of a
        kind."""
        facts = {
            "program": self._text,
            "dynamic": self.dynamic,
            "layouts": sorted(self.layouts.items()),
            "numerics": self.numerics,
            "target": self.target.name,
        }
        return digest_of(json.dumps(facts, sort_keys=True, default=str))

    @cached_property
    def _text(self) -> str:
        return _canonical(self.program, {})


def digest_of(text: str) -> str:
    """A short name of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any, known: dict[int, str]) -> str:
    """A text that is the same for equal values of the program's dataclasses, and differs for different ones.

    known: the texts of objects, by identity: what an equation repeats is one object
    """
    if isinstance(value, tuple):
        return f"({','.join([_canonical(item, known) for item in value])})"
    if isinstance(value, float):
        return value.hex()
    kind: Any = type(value)
    names = _compared_fields(kind)
    if names is None:
        return repr(value)
    if id(value) not in known:
        known[id(value)] = f"{kind.__name__}({','.join([_canonical(getattr(value, name), known) for name in names])})"
    return known[id(value)]


@cache
def _compared_fields(kind: type) -> tuple[str, ...] | None:
    """The fields of a dataclass that tell its values apart; None for any other type."""
    if not dataclasses.is_dataclass(kind):
        return None
    return tuple(field.name for field in dataclasses.fields(kind) if field.compare)


def _checked_places(program: Program) -> Iterator[Span]:
    """Where data subscripts stand in the user's files: a kernel names these lines in its errors."""
    for equation in program.equations:
        references: Iterator[ir.Equation | ir.Read] = chain((equation,), equation.reads())
        for reference in references:
            if reference.span is not None and any(isinstance(s, ir.DataIndex) for s in reference.subscripts):
                yield reference.span


def check_choices(choices: Choices) -> Choices:
    """The choices, if they make sense. Raises `ArgumentError`."""
    if choices.numerics not in NUMERICS:
        raise ArgumentError(
            f"numerics cannot be {choices.numerics!r}",
            fix=f"one of {', '.join(NUMERICS)}",
            facts={"numerics": choices.numerics},
        )
    if choices.target is not None and not isinstance(choices.target, str | Target):
        raise ArgumentError(
            f"target cannot be {choices.target!r}",
            fix="a name, such as 'cpu', or a Target",
            facts={"target": choices.target},
        )
    if not isinstance(choices.tune, bool):
        raise ArgumentError(f"tune cannot be {choices.tune!r}", fix="True or False", facts={"tune": choices.tune})
    if isinstance(choices.target, str) and choices.target not in targets.NAMES:
        raise ArgumentError(
            f"there is no target '{choices.target}'",
            fix=f"one of {', '.join(targets.NAMES)}",
            facts={"target": choices.target},
        )
    return choices


def dynamic_names(dynamic: bool | str | Size | Sequence[str | Size]) -> tuple[str, ...] | bool:
    """The sizes to keep symbolic. Raises `ArgumentError` for what is neither a name, nor names, nor a truth value."""
    if isinstance(dynamic, bool):
        return dynamic
    if isinstance(dynamic, str):
        return tuple(dynamic.split())
    if isinstance(dynamic, Size):
        return (dynamic.name,)
    try:
        return tuple(map(str, dynamic))
    except TypeError:
        raise ArgumentError(
            f"dynamic cannot be {dynamic!r}",
            why="it names the sizes that one kernel serves at every value",
            fix="dynamic=['M'], or dynamic=True for all",
            facts={"dynamic": dynamic},
        ) from None
