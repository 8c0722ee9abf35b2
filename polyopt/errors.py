"""Every error polyopt raises, and the four-part message each one carries.

A message says *what* is wrong, *where* (the user's line with a caret), *why* (with concrete index values or
sizes) and what to *try*. The parts are fields, so that tests and tools look at facts rather than at prose.
"""

from __future__ import annotations

import linecache
from collections.abc import Mapping
from pathlib import Path

from polyopt.classes import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the user's source: lines count from 1, columns from 0 (end exclusive; 0, 0 = whole line)."""

    file: str
    line: int
    column: int = 0
    end_column: int = 0

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"

    @property
    def text(self) -> str:
        """What stands there; empty where the source cannot be read, or the whole line is meant."""
        return linecache.getline(self.file, self.line)[self.column : self.end_column]

    def excerpt(self) -> str:
        """The line with a caret under the columns; empty where the source cannot be read."""
        source = linecache.getline(self.file, self.line).rstrip()
        if not source:
            return f"  {self}"
        number = f"{self.line:>4}"
        lines = [f"  {self}", f"  {number} | {source}"]
        if self.end_column > self.column:
            start = min(self.column, len(source))
            width = max(1, min(self.end_column, len(source)) - start)
            lines.append(f"  {' ' * len(number)} | {' ' * start}{'^' * width}")
        return "\n".join(lines)


class PolyoptError(Exception):
    """Base of all polyopt errors.

    what:  one sentence, the first line of the message
    where: the user's source line, if one is to blame
    why:   the reason with concrete values
    fix:   what to try
    facts: the concrete values, by name (index tuples, sizes, dtypes), for programs to look at
    """

    def __init__(
        self,
        what: str,
        *,
        where: Span | None = None,
        why: str = "",
        fix: str = "",
        facts: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.why = why
        self.fix = fix
        self.facts = dict(facts or {})

    def __str__(self) -> str:
        parts = [self.what]
        if self.where is not None:
            parts.append("\n" + self.where.excerpt())
        if self.why:
            parts.append(_indented(self.why))
        if self.fix:
            parts.append(_indented(f"Try: {self.fix}"))
        return "\n".join(parts)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 dimension", "2 dimensions"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def with_article(noun: str) -> str:
    """A noun with its article: "a float", "an int"."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" if line else line for line in text.splitlines())


class DefinitionError(PolyoptError):
    """The equations are ambiguous, incomplete or cyclic, or an index has no range."""


class ShapeError(PolyoptError, ValueError):
    """Sizes do not fit together."""


class ArgumentError(PolyoptError, ValueError):
    """A call's arguments do not fit the signature."""


class CallError(ArgumentError, TypeError):
    """A call gives too many arguments, too few, or one that no parameter takes: Python's own error is a `TypeError`."""


class DTypeError(PolyoptError, TypeError):
    """A dtype is not supported here or does not fit."""


class BoundsError(PolyoptError, IndexError):
    """An element outside an array would be read or written."""


class ScheduleError(PolyoptError):
    """No legal schedule was found. From a compile this is polyopt's own defect."""


class LegalityError(PolyoptError):
    """A schedule breaks a dependence; `facts` holds a violating pair. From a compile, polyopt's own defect."""


class CompileError(PolyoptError):
    """The machine's compiler or code generator failed."""


class BackendUnavailable(PolyoptError):
    """The target needs something that this machine lacks."""


class CacheError(PolyoptError):
    """The cache folder cannot be used as asked."""
