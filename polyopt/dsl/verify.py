"""Checks that a program is a legal input of the next stage. What it finds is polyopt's own mistake."""

from __future__ import annotations

from collections.abc import Iterator

from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine
from polyopt.dsl.builtins import BUILTINS
from polyopt.dtypes import bool_, i64


def verify(program: ir.Program) -> None:
    """Raises `AssertionError` with every broken rule: names, ranks, dtypes, and axes in scope."""
    problems = list(_problems(program))
    assert not problems, f"program '{program.name}' breaks its rules: " + "; ".join(problems)


def _problems(program: ir.Program) -> Iterator[str]:
    names = [tensor.name for tensor in program.tensors]
    if len(set(names)) < len(names):
        yield "names of tensors are not unique"
    labels = [equation.name for equation in program.equations]
    if len(set(labels)) < len(labels):
        yield "names of equations are not unique"
    for name in (*program.parameters, *program.results):
        if name not in names:
            yield f"'{name}' is not a tensor"
    for tensor in program.tensors:
        if tensor.shape is not None and len(tensor.shape) != tensor.rank:
            yield f"shape and rank of '{tensor.name}' differ"
        if (tensor.role == "output") != (tensor.name in program.results):
            yield f"role of '{tensor.name}' does not fit the results"
    for equation in program.equations:
        yield from (f"{equation.name}: {problem}" for problem in _equation_problems(program, equation))


def _equation_problems(program: ir.Program, equation: ir.Equation) -> Iterator[str]:
    tensor = program.tensor(equation.tensor)
    axes = frozenset(axis.name for axis in equation.all_axes)
    if len(axes) < len(equation.all_axes):
        yield "names of axes are not unique"
    if tensor.role == "input":
        yield "an input is defined"
    if len(equation.subscripts) != tensor.rank:
        yield "the left side does not fit the rank"
    if equation.reduce_axes and equation.reducer is None:
        yield "a plain definition has reduced axes"
    wanted = equation.reducer.dtype if equation.reducer is not None else tensor.dtype
    if equation.value.dtype != wanted:
        yield f"the value is {equation.value.dtype} and not {wanted}"
    yield from _affine_problems(af.condition_affines(equation.guard), axes)
    yield from _subscript_problems(program, equation.subscripts, axes)
    yield from _value_problems(program, equation.value, axes)


def _subscript_problems(
    program: ir.Program, subscripts: tuple[ir.Subscript, ...], axes: frozenset[str]
) -> Iterator[str]:
    yield from _affine_problems((s for s in subscripts if isinstance(s, Affine)), axes)
    for subscript in subscripts:
        if isinstance(subscript, ir.DataIndex):
            if not subscript.value.dtype.is_integer:
                yield "a data subscript is not an integer"
            yield from _value_problems(program, subscript.value, axes)


def _affine_problems(affines: Iterator[Affine], axes: frozenset[str]) -> Iterator[str]:
    for affine in affines:
        for name in sorted(af.axes_of(affine) - axes):
            yield f"axis '{name}' is not in scope"


def _value_problems(program: ir.Program, expr: ir.Expr, axes: frozenset[str]) -> Iterator[str]:
    inner = axes
    match expr:
        case ir.Read(tensor=name, subscripts=subscripts, dtype=dtype):
            tensor = program.tensor(name)
            if len(subscripts) != tensor.rank or dtype != tensor.dtype:
                yield f"a read of '{name}' does not fit its rank or dtype"
            yield from _affine_problems((s for s in subscripts if isinstance(s, Affine)), axes)
        case ir.IndexValue(affine=affine, dtype=dtype):
            if dtype != i64:
                yield "an index value is not i64"
            yield from _affine_problems(iter((affine,)), axes)
        case ir.Where(condition, then, otherwise, dtype):
            if not then.dtype == otherwise.dtype == dtype:
                yield "the branches of a choice differ in dtype"
            yield from _affine_problems(af.condition_affines(condition), axes)
        case ir.Op():
            yield from _op_problems(expr)
        case ir.Reduce(reducer=reducer, body=body, axes=own, guard=guard):
            names = frozenset(axis.name for axis in own)
            if names & axes or len(names) < len(own):
                yield "an axis is bound twice along a path"
            if not body.dtype == reducer.dtype == expr.dtype:
                yield "body and reducer differ in dtype"
            inner = axes | names
            yield from _affine_problems(af.condition_affines(guard), inner)
        case _:
            pass
    for child in ir.children(expr):
        yield from _value_problems(program, child, inner)


def _op_problems(expr: ir.Op[ir.Expr]) -> Iterator[str]:
    builtin = BUILTINS.get(expr.name)
    if builtin is None or builtin.arity != len(expr.args):
        yield f"'{expr.name}' is not an operation of {len(expr.args)} operands"
        return
    operands = expr.args[1:] if expr.name == "select" else expr.args
    if expr.name == "select" and expr.args[0].dtype != bool_:
        yield "a select's condition is not bool"
    dtype = operands[0].dtype
    if any(operand.dtype != dtype for operand in operands):
        yield f"the operands of '{expr.name}' differ in dtype"
    fits = {
        "number": not dtype.is_bool,
        "float": dtype.is_float,
        "integer": dtype.is_integer,
        "logic": not dtype.is_float,
        "any": True,
    }[builtin.operands]
    if not fits:
        yield f"'{expr.name}' is not defined for {dtype}"
    if expr.dtype != (bool_ if builtin.result == "bool" else dtype):
        yield f"the result of '{expr.name}' has the wrong dtype"
