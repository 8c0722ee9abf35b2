"""The program: equations over indices, typed and resolved, as every later stage reads them.

`dsl.trace` makes a program from a user's function. It is typed: every conversion is a `Cast`, every operation
has operands of one dtype. Names of tensors are unique; names of axes are unique along a path from an equation
to the innermost reduction. Values compare structurally, source spans aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field, replace
from functools import cached_property
from math import copysign
from typing import Generic, Literal, TypeAlias, TypeVar, assert_never

from polyopt.classes import dataclass
from polyopt.dsl.affine import TRUE, Affine, And, Compare, Condition, Or, map_condition
from polyopt.dtypes import DType
from polyopt.errors import ShapeError, Span
from polyopt.room import with_room

Operand = TypeVar("Operand", covariant=True)
"""The expressions that an operation holds: a program's or a loop program's."""


@dataclass(frozen=True, slots=True)
class Axis:
    """A named index with its half-open range.

    lower, upper: the range is from the largest of `lower` to the smallest of `upper` (exclusive). Both are
    affine in sizes; both are empty until `poly.ranges` has resolved the program, unless the user gave an
    explicit range.
    """

    name: str
    lower: tuple[Affine, ...] = ()
    upper: tuple[Affine, ...] = ()

    @property
    def is_resolved(self) -> bool:
        return bool(self.lower and self.upper)


# --- expressions: what the value of an element is ------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """A literal of the given dtype: a bool, an int, or a float (NaN and infinities included). 0.0 and -0.0 are two."""

    value: bool | int | float
    dtype: DType

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Const):
            return NotImplemented
        alike = self.value is other.value or self.value == other.value
        return alike and self.dtype == other.dtype and copysign(1, self.value) == copysign(1, other.value)

    def __hash__(self) -> int:
        return hash((self.value, self.dtype))


@dataclass(frozen=True, slots=True)
class IndexValue:
    """An affine expression of axes and sizes used as a number; dtype i64."""

    affine: Affine
    dtype: DType


@dataclass(frozen=True, slots=True)
class Op(Generic[Operand]):
    """A scalar operation of `dsl.builtins` on operands already of the right dtype; also a loop program's."""

    name: str
    args: tuple[Operand, ...]
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast(Generic[Operand]):
    """Conversion as `dtypes.converted` does it; also a loop program's."""

    arg: Operand
    dtype: DType


@dataclass(frozen=True, slots=True)
class DataIndex:
    """A subscript that is data: an integer expression, checked against the extent as the kernel runs.

    place: the user's tensor and its dimension, for errors, where a rewrite writes to another one
    """

    value: Expr
    place: tuple[str, int] | None = field(default=None, compare=False)


Subscript = Affine | DataIndex


@dataclass(frozen=True, slots=True)
class Pad:
    """Reads outside the tensor's box give `value`."""

    value: Const


@dataclass(frozen=True, slots=True)
class Clamp:
    """Reads outside the box give the nearest element."""


@dataclass(frozen=True, slots=True)
class Wrap:
    """Reads outside the box are periodic."""


Boundary = Pad | Clamp | Wrap


@dataclass(frozen=True, slots=True)
class Read:
    """One element of a tensor. Rank 0 has no subscripts."""

    tensor: str
    subscripts: tuple[Subscript, ...]
    dtype: DType
    boundary: Boundary | None = None
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Where:
    """A choice by an affine condition. Only the chosen branch is read. (A choice by data is `Op("select")`.)"""

    condition: Condition
    then: Expr
    otherwise: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Var:
    """A placeholder inside the `combine` of a custom reduction."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Reducer:
    """How the values of a reduction are combined.

    name:     "sum", "prod", "max", "min", "any", "all" or "custom"
    combine:  for "custom": an expression over `Var("a")` (running value) and `Var("b")`
    neutral:  the start value; None for a max or min without `init=` (then every domain must be non-empty)
    is_contraction: a sum whose factors the user left to be multiplied and summed in any order, as `po.einsum` does
    """

    name: Literal["sum", "prod", "max", "min", "any", "all", "custom"]
    dtype: DType
    neutral: Const | None
    combine: Combine | None = None
    is_contraction: bool = False


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction of `body` over `axes`, restricted to points where `guard` holds.

    `body` has the dtype of the reducer (the accumulator's); `dtype` is the same. A rounding of the result back
    to a narrower dtype is a `Cast` around the reduction.
    """

    reducer: Reducer
    body: Expr
    axes: tuple[Axis, ...]
    dtype: DType
    guard: Condition = TRUE
    span: Span | None = field(default=None, compare=False)


Combine: TypeAlias = "Const | Op[Combine] | Cast[Combine] | Var"
"""What a custom reduction does with two values: an expression of a program and of a loop program alike."""

Expr: TypeAlias = "Const | IndexValue | Op[Expr] | Cast[Expr] | Read | Where | Reduce | Var"


# --- tensors and equations ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """A named array.

    shape: extents, affine in sizes; None until resolved (a local tensor without `shape=`)
    role:  "input" is given at the call, "output" is returned, "local" is neither
    """

    name: str
    dtype: DType
    shape: tuple[Affine, ...] | None
    role: Literal["input", "output", "local"]
    rank: int
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Equation:
    """`tensor[subscripts] = value` for every point of `axes` where `guard` holds; with a reducer, `+=` or `*=`.

    axes:        the indices of the left side, in order of first appearance
    reduce_axes: for an accumulation: indices only on the right or inside a data subscript on the left
    reducer:     None for a plain definition
    value:       of the tensor's dtype; of the reducer's dtype for an accumulation (the result is then rounded)
    is_whole:    whole-tensor arithmetic: the dimensions that an index stands alone in must agree, as NumPy's do,
                 also where their extents are inferred
    """

    name: str
    tensor: str
    axes: tuple[Axis, ...]
    subscripts: tuple[Subscript, ...]
    value: Expr
    guard: Condition = TRUE
    reducer: Reducer | None = None
    reduce_axes: tuple[Axis, ...] = ()
    span: Span | None = field(default=None, compare=False)
    is_whole: bool = False

    @property
    def is_accumulation(self) -> bool:
        return self.reducer is not None

    @property
    def is_reduction(self) -> bool:
        """Whether something is reduced: by the definition itself, or in its value."""
        return self.is_accumulation or any(isinstance(node, Reduce) for node in walk(self.value))

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        return self.axes + self.reduce_axes

    @property
    def bound_axes(self) -> tuple[Axis, ...]:
        """Those of reductions inside expressions too: what a new axis must not be called as."""
        inner = (axis for e in self.exprs for node in walk(e) if isinstance(node, Reduce) for axis in node.axes)
        return (*self.all_axes, *inner)

    @property
    def exprs(self) -> tuple[Expr, ...]:
        """All that it evaluates: the data subscripts of its left side, and its value."""
        return *(s.value for s in self.subscripts if isinstance(s, DataIndex)), self.value

    def reads(self) -> Iterator[Read]:
        """Every read of `exprs`."""
        return (read for expr in self.exprs for read in reads(expr))


@dataclass(frozen=True, slots=True)
class Agreement:
    """What a tensor that was given to an inlined op must fulfil, over sizes and extents that are not known yet.

    parameter, annotation: what the op takes: its name, and the extent that its annotation says
    tensor, dimension:     what it was given
    extent: of that dimension
    wanted: the annotation's value; None where the extent gives a size of the op its value
    """

    condition: Condition
    parameter: str
    annotation: str
    tensor: str
    dimension: int
    extent: Affine
    wanted: Affine | None
    span: Span | None = field(default=None, compare=False)

    def map(self, change: Callable[[Affine], Affine]) -> Agreement:
        """The agreement with every affine expression changed."""
        wanted = None if self.wanted is None else change(self.wanted)
        return replace(self, condition=map_condition(self.condition, change), extent=change(self.extent), wanted=wanted)

    def error(self) -> ShapeError:
        """The error where it does not hold."""
        name = f"dimension {self.dimension} of '{self.parameter}'"
        given = f"{self.extent} in '{self.tensor}'"
        return ShapeError(
            f"{name} is '{self.annotation}', which {given} cannot be"
            if self.wanted is None
            else f"{name} has extent {self.wanted}, and {given}",
            where=self.span,
            why="No size of 0 or more gives it." if self.wanted is None else "",
            fix="pass a tensor whose extents fit.",
            facts={
                "parameter": self.parameter,
                "dimension": self.dimension,
                "wanted": self.annotation if self.wanted is None else str(self.wanted),
                "given": str(self.extent),
            },
        )


@dataclass(frozen=True, slots=True)
class UsedExtent:
    """What equations were written with as the extent of a local tensor, before its ranges are found.

    extent: the one that it has, once that is known; used: the one that was used. Below 0 both count as 0
    """

    tensor: str
    dimension: int
    extent: Affine
    used: Affine
    span: Span | None = field(default=None, compare=False)

    @property
    def condition(self) -> Condition:
        """That they are the same."""
        same = Compare(self.extent - self.used, "==")
        return Or((same, And((Compare(self.used, "<="), Compare(self.extent, "<=")))))

    def map(self, change: Callable[[Affine], Affine]) -> UsedExtent:
        """The same with every affine expression changed."""
        return replace(self, extent=change(self.extent), used=change(self.used))

    def error(self) -> ShapeError:
        """The error where they are not."""
        return ShapeError(
            f"dimension {self.dimension} of '{self.tensor}' was taken for {self.used} long, and is {self.extent}",
            where=self.span,
            why="Guards, quotients or extents that follow from others decide about an index of its definitions.",
            fix=f"give '{self.tensor}' shape=, or that index its own range with po.index(name, extent=...).",
            facts={"tensor": self.tensor, "dimension": self.dimension},
        )


@dataclass(frozen=True)
class Program:
    """A system of affine recurrence equations with reductions.

    sizes:      names of the sizes that are still symbolic
    parameters: names of the input tensors, in call order
    results:    names of the output tensors, in order of return
    conditions: over sizes alone; checked at the call (found while resolving ranges and bounds)
    agreements: conditions that wait for ranges to be resolved
    """

    name: str
    sizes: tuple[str, ...]
    tensors: tuple[Tensor, ...]
    equations: tuple[Equation, ...]
    parameters: tuple[str, ...]
    results: tuple[str, ...]
    conditions: tuple[Condition, ...] = ()
    agreements: tuple[Agreement | UsedExtent, ...] = ()

    @cached_property
    def _tensors(self) -> Mapping[str, Tensor]:
        return {tensor.name: tensor for tensor in self.tensors}

    @cached_property
    def _definitions(self) -> Mapping[str, tuple[Equation, ...]]:
        found: dict[str, list[Equation]] = {}
        for equation in self.equations:
            found.setdefault(equation.tensor, []).append(equation)
        return {tensor: tuple(equations) for tensor, equations in found.items()}

    def tensor(self, name: str) -> Tensor:
        """The tensor called `name`; a `KeyError` is our own mistake."""
        return self._tensors[name]

    def definitions(self, tensor: str) -> tuple[Equation, ...]:
        """The equations of a tensor, in order."""
        return self._definitions.get(tensor, ())

    def __str__(self) -> str:
        """The signature and the equations."""
        from polyopt.dsl.text import program_text  # the printer reads this module's types

        return with_room(lambda: program_text(self))


# --- traversal ------------------------------------------------------------------------------------------------


def children(expr: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions, data subscripts of a read included."""
    match expr:
        case Const() | IndexValue() | Var():
            return ()
        case Op(args=args):
            return args
        case Cast(arg=arg):
            return (arg,)
        case Read(subscripts=subscripts):
            return tuple(s.value for s in subscripts if isinstance(s, DataIndex))
        case Where(then=then, otherwise=otherwise):
            return then, otherwise
        case Reduce(body=body):
            return (body,)
        case _:
            assert_never(expr)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and all its sub-expressions, parents first."""
    yield expr
    for child in children(expr):
        yield from walk(child)


def map_data(subscripts: tuple[Subscript, ...], change: Callable[[Expr], Expr]) -> tuple[Subscript, ...]:
    """The subscripts, with those that are data changed."""
    return tuple(replace(s, value=change(s.value)) if isinstance(s, DataIndex) else s for s in subscripts)


def rebuild(expr: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The same node with each direct sub-expression changed; the node itself where nothing changed."""
    match expr:
        case Const() | IndexValue() | Var():
            return expr
        case Op(args=args):
            return replace(expr, args=tuple(change(arg) for arg in args))
        case Cast(arg=arg):
            return replace(expr, arg=change(arg))
        case Read(subscripts=subscripts):
            if not any(isinstance(s, DataIndex) for s in subscripts):
                return expr
            changed = map_data(subscripts, change)
            return replace(expr, subscripts=changed)
        case Where(then=then, otherwise=otherwise):
            return replace(expr, then=change(then), otherwise=change(otherwise))
        case Reduce(body=body):
            return replace(expr, body=change(body))
        case _:
            assert_never(expr)


def reads(expr: Expr) -> Iterator[Read]:
    """Every read, parents first, in source order."""
    return (node for node in walk(expr) if isinstance(node, Read))
