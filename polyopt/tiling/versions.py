"""Statements twice, for two kinds of sizes: with symbolic sizes one kernel serves matrices and single rows.

A copy of an operand pays where many rows of the result read it, and costs several times what it saves where one does.
Which it is, only a call's sizes tell. So each statement is there twice, on sizes that exclude each other, with local
arrays of its own: no dependence leads from one version to the other, so that no stage after this one knows of versions,
and each gets the loops, tiles and storage that suit it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import islpy as isl

from polyopt.dsl import ir
from polyopt.names import unused
from polyopt.poly.scop import Access, Scop, Statement

FEW = "few"
"""What the second version of a name ends in."""


def split(scop: Scop, few: isl.Set) -> Scop:
    """The scop with a second version of each statement, for the sizes in `few`; the first one is for all others."""
    many = scop.context.subtract(few)
    taken = {s.name for s in scop.statements} | {a.name for a in scop.arrays}
    local = [a for a in scop.arrays if a.role == "local"]
    arrays = {a.name: unused(f"{a.name}_{FEW}", taken) for a in local}
    names = {s.name: arrays.get(s.name, unused(f"{s.name}_{FEW}", taken)) for s in scop.statements}
    statements = (
        *(_renamed(s, s.name, {}, many) for s in scop.statements),
        *(_renamed(s, names[s.name], arrays, few) for s in scop.statements),
    )
    statements = tuple(s for s in statements if not s.domain.is_empty())  # some happen in one version only
    copies = (replace(a, name=arrays[a.name]) for a in local)
    return replace(scop, statements=statements, arrays=(*scop.arrays, *copies))


def _renamed(statement: Statement, name: str, arrays: Mapping[str, str], sizes: isl.Set) -> Statement:
    """The statement under another name, with other arrays, where the sizes are some of these."""

    def visit(expr: ir.Expr) -> ir.Expr:
        expr = ir.rebuild(expr, visit)
        return replace(expr, tensor=arrays.get(expr.tensor, expr.tensor)) if isinstance(expr, ir.Read) else expr

    def read(access: Access) -> Access:
        found = visit(access.read)
        assert isinstance(found, ir.Read), "a read stays one"
        return Access(found, relation(access.relation, found.tensor))

    def relation(found: isl.Map, array: str) -> isl.Map:
        named = found.set_tuple_name(isl.dim_type.in_, name).set_tuple_name(isl.dim_type.out, array)
        return named.intersect_params(sizes)

    def subscript(found: ir.Subscript) -> ir.Subscript:
        return replace(found, value=visit(found.value)) if isinstance(found, ir.DataIndex) else found

    array = arrays.get(statement.array, statement.array)
    return replace(
        statement,
        name=name,
        domain=statement.domain.set_tuple_name(name).intersect_params(sizes),
        array=array,
        subscripts=tuple(map(subscript, statement.subscripts)),
        value=visit(statement.value),
        write=relation(statement.write, array),
        reads=tuple(map(read, statement.reads)),
    )
