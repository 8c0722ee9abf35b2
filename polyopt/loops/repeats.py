"""Nests that a loop program repeats, as a network of equal layers does: the same loops over other buffers.

Two nests are the same where one becomes the other by calling its buffers and loop variables otherwise, each by one
name, and no two by the same; their buffers are declared alike. Which instances of which statements they run does not
matter to the machine, and is not compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.dsl.ir import Cast, Const, Op, Var
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Stmt,
    Store,
    substatements,
    walk,
)


@dataclass(frozen=True, slots=True)
class Form:
    """What a nest is but for names.

    key:     the same for two nests of one program that are the same
    buffers: those that it uses and does not allocate, in the order in which it comes to them
    """

    key: Hashable
    buffers: tuple[str, ...]


def forms(program: LoopProgram) -> list[tuple[For, Form]]:
    """The outermost loops of the program, in order."""
    declared = {buffer.name: buffer for buffer in (*program.arguments, *program.workspace)}
    known: dict[Hashable, int] = {}
    return [(nest, _form(nest, declared, known)) for nest in _outermost(program.body)]


def repeated(found: Iterable[tuple[For, Form]]) -> list[tuple[For, Form]]:
    """Those that are there more than once."""
    found = list(found)
    count = Counter(form.key for _, form in found)
    return [(nest, form) for nest, form in found if count[form.key] > 1]


def _outermost(statement: Stmt) -> Iterator[For]:
    """Outermost loops in which nothing is used that is allocated outside."""
    if isinstance(statement, For):
        yield statement
    elif not isinstance(statement, Alloc):
        for inner in substatements(statement):
            yield from _outermost(inner)


def _form(nest: Stmt, declared: Mapping[str, Buffer], known: dict[Hashable, int]) -> Form:
    own = {inner.buffer.name for inner in walk(nest) if isinstance(inner, Alloc)}
    names = _Names(known, {inner.var for inner in walk(nest) if isinstance(inner, For)})
    body = names.statement(nest)
    buffers = tuple(name for name in names.buffers if name not in own)
    return Form((body, *(names.declaration(declared[name]) for name in buffers)), buffers)


@dataclass(slots=True)
class _Names:
    """Numbers the parts of one nest: parts that are the same but for names have the same number.

    known:     numbers of parts, of all nests
    variables: of the loops of the nest, which other names are not
    numbers, buffers: of variables and buffers, in the order in which they occur
    parts:     numbers of expressions, by their addresses, for rewrites share what equations repeat
    """

    known: dict[Hashable, int]
    variables: set[str]
    numbers: dict[str, int] = field(default_factory=dict)
    buffers: dict[str, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)

    def number(self, *what: Hashable) -> int:
        return self.known.setdefault(what, len(self.known))

    def variable(self, name: str) -> Hashable:
        return self.numbers.setdefault(name, len(self.numbers)) if name in self.variables else name

    def buffer(self, name: str) -> int:
        return self.buffers.setdefault(name, len(self.buffers))

    def declaration(self, buffer: Buffer) -> Hashable:
        """A buffer but for its name."""
        lengths = (buffer.shape, buffer.strides, buffer.given)
        numbers = (None if part is None else tuple(map(self.expr, part)) for part in lengths)
        return self.number("buffer", replace(buffer, name="", shape=(), strides=None, given=None), *numbers)

    def statement(self, statement: Stmt) -> int:
        match statement:
            case Block(body):
                return self.number("block", *map(self.statement, body))
            case For(var, lower, upper, body, step, kind, _, chunk):
                bounds = self.expr(lower), self.expr(upper)
                return self.number("for", self.variable(var), *bounds, step, kind, chunk, self.statement(body))
            case If(condition, then, otherwise):
                rest = None if otherwise is None else self.statement(otherwise)
                return self.number("if", self.expr(condition), self.statement(then), rest)
            case Alloc(buffer, body):
                declared = self.buffer(buffer.name), self.declaration(buffer)
                return self.number("alloc", *declared, self.statement(body))
            case Store(_, _, buffer, indices, value, reducer, checks):
                places = tuple(map(self.expr, indices))
                return self.number("store", self.buffer(buffer), places, self.expr(value), reducer, checks)
            case _:
                assert_never(statement)

    def expr(self, expr: Expr) -> int:
        if id(expr) not in self.parts:
            self.parts[id(expr)] = self._expr(expr)
        return self.parts[id(expr)]

    def _expr(self, expr: Expr) -> int:
        match expr:
            case Const():
                return self.number(expr)
            case Var(name, dtype):
                return self.number("var", self.variable(name), dtype)
            case Op(name, args, dtype):
                return self.number("op", name, dtype, *map(self.expr, args))
            case Cast(arg, dtype):
                return self.number("cast", dtype, self.expr(arg))
            case Load(buffer, indices, dtype, mask, checks):
                asked = None if mask is None else self.expr(mask)
                return self.number("load", self.buffer(buffer), dtype, checks, asked, *map(self.expr, indices))
            case _:
                assert_never(expr)
