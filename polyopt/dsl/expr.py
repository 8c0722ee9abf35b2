"""What the user's operators build: untyped expressions over indices, sizes and elements of tensors.

An expression has identity semantics, since `==` builds a condition. Nothing is checked or typed here; that is
`dsl.elaborate`'s part, when every definition is known.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any
from typing import Literal as OneOf

import numpy as np

from polyopt.dsl.affine import Affine
from polyopt.dsl.operators import Operators
from polyopt.dsl.spans import user_span
from polyopt.dtypes import DType
from polyopt.errors import DefinitionError, Span

if TYPE_CHECKING:
    from polyopt.dsl.state import Handle

Weak = bool | int | float
Scalar = bool | int | float | np.generic


class Expr(Operators):
    """A scalar value: one number per point of the indices that occur in it.

    span: where the user wrote it
    """

    __slots__ = ("span",)

    span: Span | None

    def __init__(self) -> None:
        self.span = user_span()

    def _operate(self, name: str, *operands: object) -> Any:
        exprs = [try_expr(operand) for operand in operands]
        known = [expr for expr in exprs if expr is not None]
        return Call(name, tuple(known)) if len(known) == len(exprs) else NotImplemented

    def __getitem__(self, key: object) -> Expr:
        if key == ():
            return self
        raise DefinitionError(
            "a single value cannot be subscripted",
            where=user_span(),
            why="Only tensors have elements; this is one value per point of the indices.",
            fix="define a tensor for it: y[i] = ..., and subscript y.",
        )

    @property
    def shape(self) -> tuple[()]:
        return ()

    @property
    def ndim(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Any:
        """What a tensor has, of the tensor of rank 0 that a value without indices is."""
        if name.startswith("_"):  # Python and NumPy ask for many, to see what a value is
            raise AttributeError(name)
        from polyopt.dsl import tensor  # it makes expressions

        return tensor.attribute_of_value(self, name)

    def children(self) -> tuple[Expr, ...]:
        """The direct sub-expressions, subscripts and conditions included."""
        return ()

    def __repr__(self) -> str:
        return source_text(self)


class Literal(Expr):
    """A number. Python's own are weak (they take the dtype of what they meet), NumPy's scalars keep theirs."""

    __slots__ = ("value",)

    def __init__(self, value: Scalar) -> None:
        super().__init__()
        self.value = value


class Index(Expr):
    """An index variable; lower and upper give an explicit half-open range, which also ends before `cap`."""

    __slots__ = ("cap", "lower", "name", "upper")

    def __init__(
        self, name: str, lower: Expr | None = None, upper: Expr | None = None, *, cap: Expr | None = None
    ) -> None:
        super().__init__()
        self.name, self.lower, self.upper, self.cap = name, lower, upper, cap


class Size(Expr):
    """A symbolic extent. Sizes of one name are the same size."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class AffineSize(Expr):
    """An affine expression over sizes of the outermost op, as an extent of a tensor is."""

    __slots__ = ("affine",)

    def __init__(self, affine: Affine) -> None:
        super().__init__()
        self.affine = affine


class Element(Expr):
    """One element of a tensor. boundary: None, or what `pad`, `clamp` and `wrap` asked for."""

    __slots__ = ("boundary", "subscripts", "tensor")

    def __init__(self, tensor: Handle, subscripts: tuple[Expr, ...], boundary: Boundary | None = None) -> None:
        super().__init__()
        self.tensor, self.subscripts, self.boundary = tensor, subscripts, boundary

    def children(self) -> tuple[Expr, ...]:
        return self.subscripts

    def __iadd__(self, other: object) -> Any:
        return self._accumulate("add", other)

    def __isub__(self, other: object) -> Any:
        return self._accumulate("sub", other)

    def __imul__(self, other: object) -> Any:
        return self._accumulate("mul", other)

    def __itruediv__(self, other: object) -> Any:
        return self._update("truediv", other)

    def __ifloordiv__(self, other: object) -> Any:
        return self._update("floordiv", other)

    def __imod__(self, other: object) -> Any:
        return self._update("mod", other)

    def __ipow__(self, other: object) -> Any:
        return self._update("pow", other)

    def __iand__(self, other: object) -> Any:
        return self._update("and", other)

    def __ior__(self, other: object) -> Any:
        return self._update("or", other)

    def __ixor__(self, other: object) -> Any:
        return self._update("xor", other)

    def __ilshift__(self, other: object) -> Any:
        return self._update("shl", other)

    def __irshift__(self, other: object) -> Any:
        return self._update("shr", other)

    def _update(self, name: str, other: object) -> Any:
        expr = try_expr(other)
        return NotImplemented if expr is None else Update(name, (self, expr))

    def _accumulate(self, name: str, other: object) -> Any:
        expr = try_expr(other)
        return NotImplemented if expr is None else Accumulation(name, (self, expr))


class Boundary:
    """How reads outside the box are answered. kind: "pad" (with a value), "clamp" or "wrap"."""

    __slots__ = ("kind", "value")

    def __init__(self, kind: str, value: Scalar = 0) -> None:
        self.kind, self.value = kind, value


class Call(Expr):
    """A scalar operation of `dsl.builtins`, or one of the operators' names."""

    __slots__ = ("args", "name")

    def __init__(self, name: str, args: tuple[Expr, ...]) -> None:
        super().__init__()
        self.name, self.args = name, args

    def children(self) -> tuple[Expr, ...]:
        return self.args


class Accumulation(Call):
    """What `y[i] += e` hands to `__setitem__`; anywhere else it is the ordinary `y[i] + e`."""

    __slots__ = ()

    @property
    def kind(self) -> OneOf["sum", "prod"]:
        """Of the definition that it makes."""
        return "prod" if self.name == "mul" else "sum"

    @property
    def added(self) -> Expr:
        """What is accumulated: of `-=` something for `subtracted`."""
        return _negated(self.args[1]) if self.name == "sub" else self.args[1]


class Update(Call):
    """What `y[i] /= e` hands to `__setitem__`, which refuses it; anywhere else it is the ordinary `y[i] / e`."""

    __slots__ = ()


def _negated(expr: Expr) -> Expr:
    if isinstance(expr, Guarded):
        return Guarded(expr.condition, _negated(expr.value))
    return Call("subtracted", (expr,))


def subtracted(expr: Expr) -> Expr | None:
    """What `-=` takes away, where `expr` is the value of such a definition: negated in the dtype of the sum."""
    return expr.args[0] if isinstance(expr, Call) and expr.name == "subtracted" else None


class Convert(Expr):
    """An explicit conversion, as NumPy's astype."""

    __slots__ = ("arg", "dtype")

    def __init__(self, arg: Expr, dtype: DType) -> None:
        super().__init__()
        self.arg, self.dtype = arg, dtype

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


class Passed(Convert):
    """What a parameter of an inlined op is given: converted where its kind fits, as at a call.

    is_exact: only a Python number is converted
    """

    __slots__ = ("is_exact", "parameter")

    def __init__(self, arg: Expr, dtype: DType, parameter: str, *, is_exact: bool) -> None:
        super().__init__(arg, dtype)
        self.parameter, self.is_exact = parameter, is_exact


class Weakened(Expr):
    """A run-time value that counts as a Python number: it takes the dtype of what it meets.

    kind:  "b", "i" or "f"
    reach: the least and the greatest value of an integer; None where nothing is known
    """

    __slots__ = ("arg", "kind", "reach")

    def __init__(self, arg: Expr, kind: OneOf["b", "i", "f"], reach: tuple[int, int] | None = None) -> None:
        super().__init__()
        self.arg, self.kind, self.reach = arg, kind, reach

    def children(self) -> tuple[Expr, ...]:
        return (self.arg,)


class Choice(Expr):
    """`where(condition, then, otherwise)`; the condition is affine or data."""

    __slots__ = ("condition", "otherwise", "then")

    def __init__(self, condition: Expr, then: Expr, otherwise: Expr) -> None:
        super().__init__()
        self.condition, self.then, self.otherwise = condition, then, otherwise

    def children(self) -> tuple[Expr, ...]:
        return self.condition, self.then, self.otherwise


class Guarded(Expr):
    """`when(condition, value)`: defined only where the affine condition holds."""

    __slots__ = ("condition", "value")

    def __init__(self, condition: Expr, value: Expr) -> None:
        super().__init__()
        self.condition, self.value = condition, value

    def children(self) -> tuple[Expr, ...]:
        return self.condition, self.value


class Placeholder(Expr):
    """An operand of a custom reduction's function."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


class Reduction(Expr):
    """A reduction of `body` over `indices`.

    kind:    sum, prod, max, min, any, all, mean, argmax, argmin or custom
    where:   restricts the points, by indices or by data
    init:    the value of a reduction over nothing, taken in once
    dtype:   of the accumulator and the result
    combine: for "custom": an expression over the placeholders a and b
    known:   for "mean" the number of points, for "argmax" and "argmin" the extremum, where they are at hand
    """

    __slots__ = ("body", "combine", "dtype", "indices", "init", "kind", "known", "where")

    def __init__(
        self,
        kind: str,
        body: Expr,
        indices: tuple[Index, ...],
        *,
        where: Expr | None = None,
        init: Expr | None = None,
        dtype: DType | None = None,
        combine: Expr | None = None,
        known: Expr | None = None,
    ) -> None:
        super().__init__()
        self.kind, self.body, self.indices = kind, body, indices
        self.where, self.init, self.dtype = where, init, dtype
        self.combine, self.known = combine, known

    def children(self) -> tuple[Expr, ...]:
        return tuple(e for e in (self.body, self.where, self.init, self.combine, self.known) if e is not None)


def spelled(kind: str) -> str:
    """The function of `po` that makes a reduction of this kind."""
    return "reduce" if kind == "custom" else kind


class InScope(Expr):
    """An expression whose sizes belong to another op: what an inlined op took or gave."""

    __slots__ = ("body", "sizes")

    def __init__(self, body: Expr, sizes: Mapping[str, Affine]) -> None:
        super().__init__()
        self.body, self.sizes = body, sizes

    def children(self) -> tuple[Expr, ...]:
        return (self.body,)


def in_scope(expr: Expr, sizes: Mapping[str, Affine]) -> Expr:
    """The expression with its sizes as another op means them; a `when` stays the whole right side."""
    if isinstance(expr, Guarded):
        return Guarded(InScope(expr.condition, sizes), in_scope(expr.value, sizes))
    return InScope(expr, sizes)


def try_expr(value: object) -> Expr | None:
    """The value as an expression: expressions, tensors of rank 0 and numbers; None for anything else."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, bool | int | float):
        return Literal(value)
    if isinstance(value, np.generic | np.ndarray) and value.ndim == 0:
        is_number = value.dtype.kind in "biuf" or value.dtype.name == "bfloat16"
        return Literal(value.dtype.type(value.item())) if is_number else None
    as_element = getattr(value, "_as_element", None)
    element = as_element() if as_element is not None else None
    return element if isinstance(element, Expr) else None


def as_expr(value: object, place: str = "here") -> Expr:
    """The value as an expression. Raises `DefinitionError` for what cannot be one."""
    expr = try_expr(value)
    if expr is not None:
        return expr
    rank = getattr(value, "ndim", None)
    if isinstance(value, np.ndarray):
        why, fix = "A NumPy array is not part of the equations.", "make it a parameter of the op and subscript that."
    elif isinstance(rank, int):
        why = f"A whole tensor of rank {rank} stands where one value per index belongs."
        fix = f"subscript it: {value!r}[{', '.join('ijklmn'[:rank])}]."
    elif isinstance(value, tuple):
        why = "po.sizes, po.indices and po.tensors give a tuple, even of one name, and a tuple is not one value."
        fix = "take one of it, or make one: po.size('N'), po.index('i'), po.tensor('y')."
    else:
        why = f"{type(value).__name__} is not a number, an index, a size or an element of a tensor."
        fix = "compute with numbers, indices, sizes and elements such as x[i]."
    raise DefinitionError(f"cannot use {type(value).__name__} {place}", where=user_span(), why=why, fix=fix)


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, parents first, shared parts once; depth does not matter."""
    stack, seen = [expr], set()
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack.extend(reversed(node.children()))


def free_indices(expr: Expr) -> tuple[Index, ...]:
    """The indices that no reduction inside binds, in order of first appearance."""
    found: dict[Index, None] = {}
    seen: set[tuple[Expr, frozenset[Index]]] = set()
    stack: list[tuple[Expr, frozenset[Index]]] = [(expr, frozenset())]
    while stack:
        node, bound = stack.pop()
        if (node, bound) in seen:
            continue
        seen.add((node, bound))
        if isinstance(node, Index) and node not in bound:
            found[node] = None
        inner = bound | frozenset(node.indices) if isinstance(node, Reduction) else bound
        outer = node.init if isinstance(node, Reduction) else None
        stack.extend((child, bound if child is outer else inner) for child in reversed(node.children()))
    return tuple(found)


_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**"} | {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip


def source_text(expr: Expr) -> str:
    """The expression about as the user wrote it, for messages."""
    match expr:
        case Literal(value=value):
            return str(value)
        case Index(name=name) | Size(name=name):
            return name
        case AffineSize(affine=affine):
            return str(affine)
        case Element(tensor=tensor, subscripts=subscripts):
            return f"{tensor.name}[{', '.join(map(source_text, subscripts)) or '()'}]" if subscripts else tensor.name
        case InScope(body=body):
            return source_text(body)
        case Call(name=name, args=(left, right)) if name in _SYMBOLS:
            return f"{_operand_text(left)} {_SYMBOLS[name]} {_operand_text(right)}"
        case Call(name="neg" | "not" | "subtracted" as name, args=(arg,)):
            return f"{'~' if name == 'not' else '-'}{_operand_text(arg)}"
        case Call(name=name, args=args):
            return f"{name}({', '.join(map(source_text, args))})"
        case _:
            return "this expression"


def _operand_text(expr: Expr) -> str:
    text = source_text(expr)
    return f"({text})" if isinstance(expr, Call) and expr.name in _SYMBOLS else text
