"""Gives loop variables their axis's name wherever no enclosing loop has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from polyopt.loops.ir import Alloc, Block, Buffer, Expr, For, If, Stmt, Store, index_var, substitute
from polyopt.names import unused


def rename(statement: Stmt, taken: frozenset[str]) -> Stmt:
    """The statement with every loop variable called as its axis; `i_2`, `i_3` only where they nest.

    taken: names that no variable may have
    """
    return _visit(statement, {}, taken)


def _visit(statement: Stmt, names: Mapping[str, Expr], taken: frozenset[str]) -> Stmt:
    def expr(value: Expr) -> Expr:
        return substitute(value, dict(names))

    match statement:
        case Block(body):
            return Block(tuple(_visit(inner, names, taken) for inner in body))
        case For(var=var):
            name = unused(re.sub(r"_\d+$", "", var), taken)
            body = _visit(statement.body, {**names, var: index_var(name)}, taken | {name})
            return replace(statement, var=name, lower=expr(statement.lower), upper=expr(statement.upper), body=body)
        case If(condition, then, otherwise):
            other = None if otherwise is None else _visit(otherwise, names, taken)
            return If(expr(condition), _visit(then, names, taken), other)
        case Alloc(buffer, body):
            return Alloc(_buffer(buffer, names), _visit(body, names, taken))
        case Store(instance=instance, indices=indices, value=value):
            return replace(
                statement,
                instance=tuple(expr(i) for i in instance),
                indices=tuple(expr(i) for i in indices),
                value=expr(value),
            )


def _buffer(buffer: Buffer, names: Mapping[str, Expr]) -> Buffer:
    return replace(buffer, shape=tuple(substitute(extent, dict(names)) for extent in buffer.shape))
