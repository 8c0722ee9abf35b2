"""Sizes: solved from the shapes of a call's arguments, and put into a program as numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine, SizeRef
from polyopt.dsl.constants import constant
from polyopt.dsl.expr import Call, Expr, Size, source_text, walk
from polyopt.dsl.expr import Literal as Number
from polyopt.dsl.recognise import NotAffine, affine_of, fold, size_scope
from polyopt.dsl.signature import Parameter, Signature
from polyopt.dtypes import i64
from polyopt.errors import ShapeError

# --- solving ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _Extent:
    """One dimension of one argument. dim: what the annotation says; actual: what the argument has."""

    parameter: str
    position: int
    dim: Expr
    actual: int

    @property
    def place(self) -> str:
        return f"{self.parameter}.shape[{self.position}]"


@dataclass(slots=True)
class _Solution:
    """Sizes found so far, each with the place that it was found at."""

    sizes: dict[str, int]
    places: dict[str, str]


def solve_sizes(
    signature: Signature, program: ir.Program | None, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, int]:
    """The sizes that the argument shapes mean.

    shapes:  of the tensor arguments, by parameter; a parameter that is left out says nothing
    program: with it, every size of the program must be found

    Sizes of an unannotated parameter `x` are `x_0`, `x_1`, .... Affine extents (`2*N`, `M + 1`) are solved where one
    size is missing, and checked otherwise. Raises `ShapeError` naming both places where two of them disagree.
    """
    solution = _Solution({}, {})
    pending: list[_Extent] = []
    for parameter in signature.parameters:
        if parameter.name in shapes:
            pending.extend(_extents(parameter, shapes[parameter.name], solution))
    while pending:
        rest = [extent for extent in pending if not _solve(extent, solution)]
        if len(rest) == len(pending):
            raise _unsolvable(rest[0])
        pending = rest
    if program is not None:
        _require_all(program, solution)
    return solution.sizes


def _extents(parameter: Parameter, shape: tuple[int, ...], solution: _Solution) -> Iterator[_Extent]:
    if parameter.kind == "unannotated":
        for position, actual in enumerate(shape):
            solution.sizes[f"{parameter.name}_{position}"] = actual
            solution.places[f"{parameter.name}_{position}"] = f"{parameter.name}.shape[{position}]"
        return
    if len(shape) != len(parameter.dims):
        wanted = ", ".join(map(source_text, parameter.dims))
        raise ShapeError(
            f"argument '{parameter.name}' has {len(shape)} dimensions where {len(parameter.dims)} are expected",
            why=f"Its shape is {shape}, and the annotation says {parameter.dtype}[{wanted or '()'}].",
            facts={"parameter": parameter.name, "shape": shape, "rank": len(parameter.dims)},
        )
    for position, (dim, actual) in enumerate(zip(parameter.dims, shape, strict=True)):
        yield _Extent(parameter.name, position, dim, actual)


def _solve(extent: _Extent, solution: _Solution) -> bool:
    """Uses one extent: checks it where all its sizes are known, solves it where one is missing; False for later."""
    value = evaluate_extent(extent.dim, solution.sizes)
    if value is not None:
        _check(extent, value, solution)
        return True
    try:
        affine = _substituted(affine_of(extent.dim, size_scope({})), solution.sizes)
    except NotAffine:
        return False
    if len(affine.terms) != 1:
        return False
    atom, coefficient = affine.terms[0]
    if not isinstance(atom, SizeRef):
        return False
    found, remainder = divmod(extent.actual - affine.constant, coefficient)
    if remainder or found < 0:
        raise ShapeError(
            f"{extent.place} is {extent.actual}, which '{source_text(extent.dim)}' cannot be",
            why=f"No size {atom.name} of 0 or more gives {affine} = {extent.actual}.",
            facts={"parameter": extent.parameter, "dimension": extent.position, "actual": extent.actual},
        )
    solution.sizes[atom.name] = found
    solution.places[atom.name] = extent.place
    return True


def _check(extent: _Extent, wanted: int, solution: _Solution) -> None:
    if wanted == extent.actual:
        return
    names = dict.fromkeys(node.name for node in walk(extent.dim) if isinstance(node, Size))
    text = source_text(extent.dim)
    if names:
        known = " and ".join(f"{name} = {solution.sizes[name]} from {solution.places[name]}" for name in names)
        why = f"'{text}' is {wanted}, with {known}; {extent.place} is {extent.actual}."
    else:
        why = f"The annotation says {text}; {extent.place} is {extent.actual}."
    others = [solution.places[name] for name in names]
    raise ShapeError(
        f"{extent.place} does not agree with {others[0] if others else 'its annotation'}",
        why=why,
        fix="pass arrays whose shapes fit together.",
        facts={"places": (*others, extent.place), "wanted": wanted, "actual": extent.actual},
    )


def _unsolvable(extent: _Extent) -> ShapeError:
    return ShapeError(
        f"the sizes in '{source_text(extent.dim)}' do not follow from the arguments",
        why=f"{extent.place} is {extent.actual}, and more than one size, or one under a division, is unknown in it.",
        fix="give a parameter whose extent is that size alone.",
        facts={"parameter": extent.parameter, "dimension": extent.position},
    )


def _require_all(program: ir.Program, solution: _Solution) -> None:
    for name in program.sizes:
        if name not in solution.sizes:
            raise ShapeError(
                f"size '{name}' does not follow from the arguments",
                why="No parameter has it as an extent.",
                fix=f"make it a compile-time parameter, '{name}: int', or use it in the annotation of a tensor.",
                facts={"size": name},
            )


def evaluate_extent(dim: Expr, sizes: Mapping[str, int]) -> int | None:
    """The value of an extent in an annotation, products of sizes included; None while a size is missing."""
    match dim:
        case Number(value=value):
            return int(value)
        case Size(name=name):
            return sizes.get(name)
        case Call(name=name, args=args) if name in _ARITHMETIC:
            values = [evaluate_extent(arg, sizes) for arg in args]
            known = [value for value in values if value is not None]
            return _ARITHMETIC[name](*known) if len(known) == len(values) else None
        case _:
            return None


_ARITHMETIC: Mapping[str, Callable[..., int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "neg": lambda a: -a,
}


# --- specialising ----------------------------------------------------------------------------------------------------


def specialise(program: ir.Program, sizes: Mapping[str, int]) -> ir.Program:
    """The program with these sizes replaced by numbers everywhere, and what becomes constant folded."""
    return replace(
        program,
        sizes=tuple(name for name in program.sizes if name not in sizes),
        tensors=tuple(_tensor(tensor, sizes) for tensor in program.tensors),
        equations=tuple(_equation(equation, sizes) for equation in program.equations),
        conditions=tuple(c for c in (specialise_condition(c, sizes) for c in program.conditions) if c != af.TRUE),
        agreements=tuple(agreement.map(lambda a: _substituted(a, sizes)) for agreement in program.agreements),
    )


def _substituted(affine: Affine, sizes: Mapping[str, int]) -> Affine:
    return af.substitute(
        affine, lambda a: af.constant(sizes[a.name]) if isinstance(a, SizeRef) and a.name in sizes else None
    )


def specialise_condition(condition: af.Condition, sizes: Mapping[str, int]) -> af.Condition:
    """The condition with these sizes replaced by numbers; `TRUE` or `FALSE` where that decides it."""
    return fold(af.map_condition(condition, lambda affine: _substituted(affine, sizes)))


def _tensor(tensor: ir.Tensor, sizes: Mapping[str, int]) -> ir.Tensor:
    return (
        tensor if tensor.shape is None else replace(tensor, shape=tuple(_substituted(e, sizes) for e in tensor.shape))
    )


def _axis(axis: ir.Axis, sizes: Mapping[str, int]) -> ir.Axis:
    bounds = (tuple(_substituted(bound, sizes) for bound in side) for side in (axis.lower, axis.upper))
    return ir.Axis(axis.name, *bounds)


def _subscripts(subscripts: Sequence[ir.Subscript], sizes: Mapping[str, int]) -> tuple[ir.Subscript, ...]:
    return tuple(
        _substituted(s, sizes) if isinstance(s, Affine) else replace(s, value=specialise_expr(s.value, sizes))
        for s in subscripts
    )


def _equation(equation: ir.Equation, sizes: Mapping[str, int]) -> ir.Equation:
    return replace(
        equation,
        axes=tuple(_axis(axis, sizes) for axis in equation.axes),
        reduce_axes=tuple(_axis(axis, sizes) for axis in equation.reduce_axes),
        subscripts=_subscripts(equation.subscripts, sizes),
        value=specialise_expr(equation.value, sizes),
        guard=specialise_condition(equation.guard, sizes),
    )


def specialise_expr(expr: ir.Expr, sizes: Mapping[str, int]) -> ir.Expr:
    """The expression with sizes replaced; sizes that are values become constants, and decided choices one branch."""
    return _specialised(expr, sizes, {})


def _specialised(expr: ir.Expr, sizes: Mapping[str, int], known: dict[int, ir.Expr]) -> ir.Expr:
    """known: what became of expressions, by the object: one that is repeated stays one"""
    if id(expr) not in known:
        known[id(expr)] = _node(ir.rebuild(expr, lambda child: _specialised(child, sizes, known)), sizes)
    return known[id(expr)]


def _node(changed: ir.Expr, sizes: Mapping[str, int]) -> ir.Expr:
    """An expression whose parts are specialised."""
    match changed:
        case ir.IndexValue(affine=affine):
            value = _substituted(affine, sizes)
            return ir.Const(value.constant, i64) if value.is_constant else ir.IndexValue(value, i64)
        case ir.Cast(ir.Const(value), dtype) if dtype.is_float or dtype == i64:
            return _cast_constant(changed, value)
        case ir.Read(subscripts=subscripts):
            return replace(changed, subscripts=_subscripts(subscripts, sizes))
        case ir.Where(condition, then, otherwise):
            decided = specialise_condition(condition, sizes)
            if decided in (af.TRUE, af.FALSE):
                return then if decided == af.TRUE else otherwise
            return replace(changed, condition=decided)
        case ir.Reduce(axes=axes, guard=guard):
            return replace(
                changed, axes=tuple(_axis(axis, sizes) for axis in axes), guard=specialise_condition(guard, sizes)
            )
        case _:
            return changed


def _cast_constant(cast: ir.Cast[ir.Expr], value: bool | int | float) -> ir.Expr:
    if cast.arg.dtype != i64 or not isinstance(value, int):
        return cast
    return constant(value, cast.dtype, None)
