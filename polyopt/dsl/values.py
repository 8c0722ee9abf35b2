"""Turns the user's untyped expressions into the typed expressions of `ir`.

Every operand is converted to the dtype that NumPy 2's promotion gives, weak Python scalars last; affine conditions
become `Where`, data conditions `select`. Reductions are in `dsl.lower_reductions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from itertools import islice

import numpy as np

from polyopt.classes import dataclass
from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.constants import (
    Typed,
    condition_value,
    constant,
    fold_weak,
    literal,
)
from polyopt.dsl.conversion import Converter, check_passed, compare_signs, within_range
from polyopt.dsl.expr import (
    AffineSize,
    Boundary,
    Call,
    Choice,
    Convert,
    Element,
    Expr,
    Guarded,
    Index,
    InScope,
    Literal,
    Passed,
    Placeholder,
    Reduction,
    Size,
    Weakened,
    source_text,
    walk,
)
from polyopt.dsl.recognise import (
    COMPARISONS,
    NotAffine,
    Scope,
    affine_of,
    fold,
    is_data,
    refusal,
    try_condition,
)
from polyopt.dsl.state import Handle, check_rank, fresh_name
from polyopt.dsl.types import (
    UNKNOWN,
    WEAK_BOOL,
    WEAK_FLOAT,
    WEAK_INT,
    Type,
    Unknown,
    WeakType,
    as_float,
    chosen,
    concrete,
    join,
)
from polyopt.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i64, promote, u64
from polyopt.errors import DefinitionError, DTypeError, Span


@dataclass(frozen=True, slots=True)
class Reads:
    """What tensor reads inside a sum or product are converted to.

    always: convert also where that loses precision, as an explicit `dtype=` asks
    """

    dtype: DType
    always: bool = False


@dataclass(slots=True, eq=False)
class Names:
    """The axis names of one equation: one name per index, another one where it is bound again inside itself.

    reserved: names of sizes, which axes do not share
    """

    reserved: frozenset[str] = frozenset()
    given: dict[tuple[Index, int], str] = field(default_factory=dict)

    def name(self, index: Index, level: int) -> str:
        key = (index, level)
        if key not in self.given:
            self.given[key] = fresh_name(index.name, {*self.given.values(), *self.reserved})
        return self.given[key]


Lower = Callable[["Builder", Reduction, Scope, "Reads | None"], Typed]


@dataclass(slots=True, eq=False)
class Builder:
    """Builds the typed expressions of one equation.

    type_of: the type of a tensor, as far as it is known
    lower:   turns a reduction into typed nodes
    converter: gives values the dtypes of what they meet; while it is provisional, a reduction of weak values stays weak
    guesses: while dtypes are being inferred, whether an operation takes the dtype of the operands that have one; else
             it waits for all
    names:   the axis names handed out in this equation
    """

    type_of: Callable[[Handle], Type]
    lower: Lower
    converter: Converter = field(default_factory=Converter)
    names: Names = field(default_factory=Names)
    guesses: bool = False
    placeholders: dict[str, Type] = field(default_factory=dict)
    _memo: dict[tuple[Expr, Scope, Reads | None], Typed] = field(default_factory=dict)
    _scopes: dict[tuple[Scope, tuple[object, ...]], Scope] = field(default_factory=dict)

    def build(self, expr: Expr, scope: Scope, reads: Reads | None = None) -> Typed:
        """The typed form of `expr`; with `reads`, tensor reads are converted first."""
        place = scope, reads
        for part in reversed(_left_chain(expr, lambda part: (part, *place) in self._memo)):
            self._memo[(part, *place)] = self._build(part, scope, reads)
        return self._memo[(expr, *place)]

    def convert(self, value: Typed, type_: Type, span: Span | None) -> ir.Expr:
        """The node converted to a type."""
        return self.converter.convert(value, type_, span)

    def forget(self) -> None:
        """Drops what was built with earlier types of tensors or placeholders."""
        self._memo.clear()

    def bind(self, scope: Scope, indices: tuple[Index, ...]) -> Scope:
        """The scope inside a binding of `indices`; the same object for the same question."""
        key = (scope, indices)
        if key not in self._scopes:
            axes, levels = dict(scope.axes), dict(scope.levels)
            for index in indices:
                level = levels.get(index, 0)
                axes[index], levels[index] = self.names.name(index, level), level + 1
            self._scopes[key] = Scope(axes, scope.sizes, levels)
        return self._scopes[key]

    def _rescope(self, scope: Scope, expr: InScope) -> Scope:
        key = (scope, ("sizes", id(expr.sizes)))
        if key not in self._scopes:
            self._scopes[key] = scope.of_sizes(expr.sizes)
        return self._scopes[key]

    def _build(self, expr: Expr, scope: Scope, reads: Reads | None) -> Typed:
        match expr:
            case Literal(value=value):
                return _as_leaf(literal(value), reads)
            case Index():
                return _as_leaf(Typed(ir.IndexValue(affine_of(expr, scope), i64), i64), reads)
            case Size() | AffineSize():
                extent = affine_of(expr, scope)
                return literal(extent.constant) if extent.is_constant else Typed(ir.IndexValue(extent, i64), WEAK_INT)
            case Element():
                return self._element(expr, scope, reads)
            case InScope(body=body):
                return self.build(body, self._rescope(scope, expr), reads)
            case Convert(arg=arg, dtype=dtype):
                typed = self.build(arg, scope)
                if isinstance(expr, Passed):
                    check_passed(expr, typed)
                return _as_leaf(Typed(self.convert(typed, dtype, expr.span), dtype), reads)
            case Choice():
                return self._choice(expr, scope, reads)
            case Reduction():
                return self.lower(self, expr, scope, reads)
            case Weakened(arg=arg, kind=kind, reach=known):
                node = self.build(arg, scope).node
                if known is not None:
                    self.converter.reaches[node] = known
                return Typed(node, WeakType(kind))
            case Placeholder(name=name):
                type_ = self.placeholders[name]
                return Typed(ir.Var(name, concrete(type_)), type_)
            case Guarded():
                raise DefinitionError(
                    "po.when must be the whole right side",
                    where=expr.span,
                    why="It restricts where the equation defines its tensor, so it cannot be part of a value.",
                    fix="y[i] = po.when(condition, all of it), or choose a value with po.where(condition, a, b).",
                )
            case Call():
                return self._call(expr, scope, reads)
            case _:
                raise AssertionError(f"{type(expr).__name__} is not an expression")

    # --- reads ------------------------------------------------------------------------------------------------

    def _element(self, expr: Element, scope: Scope, reads: Reads | None) -> Typed:
        tensor = expr.tensor
        check_rank(tensor, len(expr.subscripts), expr.span)
        type_ = chosen((self.type_of(tensor),))
        dtype = concrete(type_)
        subscripts = tuple(self.subscript(s, scope, tensor) for s in expr.subscripts)
        boundary = None if expr.boundary is None else self._boundary(expr.boundary, type_, expr.span)
        return _as_leaf(Typed(ir.Read(tensor.name, subscripts, dtype, boundary, expr.span), type_), reads)

    def subscript(self, expr: Expr, scope: Scope, tensor: Handle) -> ir.Subscript:
        """The subscript as an affine expression or as data. Raises `DefinitionError` for anything else."""
        try:
            return affine_of(expr, scope)
        except NotAffine as problem:
            if not is_data(expr):
                raise refusal(
                    problem,
                    f"subscript '{source_text(expr)}' of '{tensor.name}' is not affine in the indices",
                    _subscript_fix(expr),
                ) from None
        value = self.build(expr, scope)
        if not isinstance(value.type, Unknown) and not concrete(value.type).is_integer:
            raise DTypeError(
                f"subscript '{source_text(expr)}' of '{tensor.name}' is {concrete(value.type)}, not an integer",
                where=expr.span,
                fix="read it from an integer tensor, or convert it: po.cast(..., i64).",
                facts={"dtype": str(concrete(value.type))},
            )
        return ir.DataIndex(self.convert(value, concrete(value.type), expr.span))

    def _boundary(self, boundary: Boundary, type_: Type, span: Span | None) -> ir.Boundary:
        if boundary.kind == "clamp":
            return ir.Clamp()
        if boundary.kind == "wrap":
            return ir.Wrap()
        dtype = concrete(type_)
        value = boundary.value.item() if isinstance(boundary.value, np.generic) else boundary.value
        if not isinstance(type_, DType):
            return ir.Pad(ir.Const(value, dtype))
        if not dtype.is_float and isinstance(value, float) and not value.is_integer():
            raise DTypeError(
                f"{value} outside a tensor of {dtype} is no {dtype}",
                where=span,
                fix="pad with a whole number, or convert what is read: po.cast(x, f64).pad(...).",
                facts={"value": value, "dtype": str(dtype)},
            )
        return ir.Pad(constant(value, dtype, span))

    # --- choices ----------------------------------------------------------------------------------------------

    def _choice(self, expr: Choice, scope: Scope, reads: Reads | None) -> Typed:
        then, otherwise = self.build(expr.then, scope, reads), self.build(expr.otherwise, scope, reads)
        if self._waits((then, otherwise)):
            return _OPEN
        type_ = chosen((then.type, otherwise.type))
        dtype = concrete(type_)
        a, b = self.convert(then, type_, expr.span), self.convert(otherwise, type_, expr.span)
        return Typed(self._select(expr.condition, a, b, dtype, scope), type_)

    def _select(
        self, condition: Expr, then: ir.Expr, otherwise: ir.Expr, dtype: DType, scope: Scope, *, beside: bool = False
    ) -> ir.Expr:
        """A choice; affine parts of the condition become `Where`, so that data parts are read only under them.

        beside: the condition is what an affine one was taken from with `&`
        """
        affine = try_condition(condition, scope)
        if affine is not None:
            return ir.Where(affine, then, otherwise, dtype)
        if isinstance(condition, InScope):
            return self._select(condition.body, then, otherwise, dtype, self._rescope(scope, condition), beside=beside)
        if isinstance(condition, Call) and condition.name in ("and", "or"):
            for part, rest in (condition.args, condition.args[::-1]):
                affine = try_condition(part, scope)
                if affine is not None:
                    inner = self._select(rest, then, otherwise, dtype, scope, beside=beside or condition.name == "and")
                    a, b = (inner, otherwise) if condition.name == "and" else (then, inner)
                    return ir.Where(affine, a, b, dtype)
        tested = Call("beside_condition", (condition,)) if beside else condition
        return ir.Op("select", (self.truth(tested, scope), then, otherwise), dtype)

    def truth(self, expr: Expr, scope: Scope) -> ir.Expr:
        """The expression as a boolean; numbers are true where they are not 0."""
        value = self.build(expr, scope)
        if value.type in (bool_, WEAK_BOOL):
            return self.convert(value, bool_, expr.span)
        dtype = concrete(value.type)
        return ir.Op("ne", (self.convert(value, dtype, expr.span), constant(0, dtype, expr.span)), bool_)

    # --- operations -------------------------------------------------------------------------------------------

    def _call(self, expr: Call, scope: Scope, reads: Reads | None) -> Typed:
        name = expr.name
        if name in COMPARISONS:
            return self._comparison(expr, scope)
        if name in ("and", "or", "xor", "not"):
            return self._logic(expr, scope, reads)
        if name in ("isnan", "isinf"):
            return self._classify(expr, scope)
        if name in _ADAPTED:
            return self._adapted(expr, scope, reads)
        if name in ("shl", "shr") and reads is not None and reads.dtype.is_float:
            return _as_leaf(self._call(expr, scope, None), reads)
        args = tuple(self.build(arg, scope, reads) for arg in expr.args)
        if self._waits(args):
            return _OPEN
        operand = _integer_form(expr, args) if name in _INTEGER_BOOLS else join(arg.type for arg in args)
        if operand == WEAK_BOOL and name not in ("maximum", "minimum"):
            operand = WEAK_INT  # Python's True + True is 2
        if name == "pow":
            return self._power(expr, args, operand)
        if (isinstance(operand, DType) and operand.is_bool) or operand == WEAK_BOOL:
            return self._bool_arithmetic(expr, args, operand)
        if name in ("floor", "ceil", "round") and not _is_float(operand):
            return args[0]
        if name == "abs" and isinstance(operand, DType) and operand.kind == "u":
            return args[0]
        if name in ("shl", "shr"):
            _require_integer(expr, args, operand)
        if name == "truediv" or BUILTINS[name].operands == "float":
            operand = (
                (operand if _is_float(operand) else _weak_or(operand, WEAK_FLOAT, f64))
                if name == "truediv"
                else as_float(operand)
            )
        return self._apply(name, args, operand, expr.span)

    def _waits(self, operands: Iterable[Typed]) -> bool:
        """Whether an operation has no dtype yet: what `h` gives `mask * h` is not what the mask has."""
        return not self.guesses and any(isinstance(operand.type, Unknown) for operand in operands)

    def _apply(self, name: str, args: tuple[Typed, ...], operand: Type, span: Span | None) -> Typed:
        nodes = tuple(self.convert(arg, operand, span) for arg in args)
        if isinstance(operand, WeakType) and all(isinstance(node, ir.Const) for node in nodes):
            folded = fold_weak(name, tuple(node.value for node in nodes if isinstance(node, ir.Const)), operand)
            if folded is not None:
                return folded
        return Typed(ir.Op(name, nodes, concrete(operand)), operand)

    def _bool_arithmetic(self, expr: Call, args: tuple[Typed, ...], operand: Type) -> Typed:
        """Booleans under arithmetic, as NumPy has it: `+` is or, `*` is and, `-` is refused."""
        name = {"add": "or", "mul": "and", "maximum": "maximum", "minimum": "minimum"}.get(expr.name)
        if name is not None:
            return self._apply(name, args, operand, expr.span)
        if expr.name == "abs" or expr.name in ("floor", "ceil", "round"):
            return args[0]
        if expr.name == "truediv":
            return self._apply("truediv", args, f64, expr.span)
        if BUILTINS[expr.name].operands == "float":
            return self._apply(expr.name, args, as_float(operand), expr.span)
        raise DTypeError(
            f"'{source_text(expr)}' has boolean operands, for which '{expr.name}' is not defined",
            where=expr.span,
            fix="use ^ or ~ for logic, or convert: po.cast(..., i32).",
            facts={"operation": expr.name},
        )

    def _comparison(self, expr: Call, scope: Scope) -> Typed:
        affine = try_condition(expr, scope)
        if affine is not None:
            return condition_value(affine)
        name = expr.name
        args = tuple(self.build(arg, scope) for arg in expr.args)
        if self._waits(args):
            return Typed(ir.Const(False, bool_), bool_)
        operand = join(arg.type for arg in args)
        numbers = [arg.node.value for arg in args if isinstance(arg.node, ir.Const)]
        if operand == WEAK_INT and len(numbers) == 2:
            difference = af.constant(int(numbers[0]) - int(numbers[1]))
            return condition_value(fold(af.Compare(difference, COMPARISONS[name])))
        if isinstance(operand, DType) and operand.is_integer:
            name, args = within_range(name, args, operand, self.converter.reaches)
            if any(arg.type == WEAK_INT and not isinstance(arg.node, ir.Const) for arg in args):
                operand = operand if operand.bits == i64.bits else i64
        kinds = {arg.type.kind for arg in args if isinstance(arg.type, DType)}
        if kinds == {"i", "u"} and any(arg.type == u64 for arg in args):
            return compare_signs(name, args)
        nodes = tuple(self.convert(arg, concrete(operand), expr.span) for arg in args)
        return Typed(ir.Op(name, nodes, bool_), bool_)

    def _logic(self, expr: Call, scope: Scope, reads: Reads | None) -> Typed:
        affine = try_condition(expr, scope)
        if affine is not None:
            return condition_value(affine)
        if reads is not None and reads.dtype.is_float:
            return _as_leaf(self._logic(expr, scope, None), reads)
        natural = tuple(self.build(arg, scope) for arg in expr.args)
        if self._waits(natural):
            return _OPEN
        operand = join(arg.type for arg in natural)
        if _is_float(operand):
            _refuse_no_integer(expr, [concrete(arg.type) for arg in natural], operand)
            raise DTypeError(
                f"'{source_text(expr)}' has operands of dtype {concrete(operand)}; logic takes booleans and integers",
                where=expr.span,
                fix="compare first, as in (x[i] > 0) & (y[i] > 0).",
                facts={"dtype": str(concrete(operand))},
            )
        if reads is not None and operand != bool_:
            natural = tuple(self.build(arg, scope, reads) for arg in expr.args)
            operand = join(arg.type for arg in natural)
        if operand == WEAK_BOOL and expr.name == "not":
            operand = WEAK_INT  # Python's ~True is -2
        return self._apply(expr.name, natural, operand, expr.span)

    def _adapted(self, expr: Call, scope: Scope, reads: Reads | None) -> Typed:
        """A value in a dtype that follows from its own, for functions that are made of others."""
        if expr.name == "beside_condition":
            value = self.build(expr.args[0], scope)
            is_boolean = value.type in (bool_, WEAK_BOOL)
            return value if is_boolean else self._logic(Call("and", (expr.args[0], Literal(1))), scope, None)
        value, *others = (self.build(arg, scope, reads) for arg in expr.args)
        if self._waits(others or (value,)):
            return _OPEN
        wanted = _ADAPTED[expr.name](value.type, *(other.type for other in others))
        return Typed(self.convert(value, wanted, expr.span), wanted)

    def _classify(self, expr: Call, scope: Scope) -> Typed:
        value = self.build(expr.args[0], scope)
        if isinstance(value.type, DType) and not value.type.is_float:
            return Typed(ir.Op("ne", (value.node, value.node), bool_), bool_)  # False, and it reads what it is asked of
        return Typed(ir.Op(expr.name, (self.convert(value, as_float(value.type), expr.span),), bool_), bool_)

    def _power(self, expr: Call, args: tuple[Typed, ...], operand: Type) -> Typed:
        base, exponent = args
        value = exponent.node.value if isinstance(exponent.node, ir.Const) else None
        if value is not None and value < 0 and not _is_float(operand) and not isinstance(operand, Unknown):
            raise DTypeError(
                f"'{source_text(expr)}' raises an integer to a negative power",
                where=expr.span,
                fix=f"make the base a float: po.cast(..., f64) ** {value}.",
            )
        node = self.convert(base, operand, expr.span)
        if value in (1, 2, 3) and isinstance(exponent.type, WeakType) and _is_small(node):
            return self._multiplied(Typed(node, operand), int(value), expr.span)
        if value == 0.5 and _is_float(operand):
            return self._apply("sqrt", (base,), operand, expr.span)
        if value == -1 and _is_float(operand):
            return self._apply("truediv", (literal(1.0), base), operand, expr.span)
        return self._apply("pow", args, operand, expr.span)

    def _multiplied(self, factor: Typed, times: int, span: Span | None) -> Typed:
        result = factor
        for _ in range(times - 1):
            result = self._apply("mul", (result, factor), factor.type, span)
        return result


# --- small questions -------------------------------------------------------------------------------------------------

_OPEN = Typed(ir.Const(0.0, f64), UNKNOWN)
"""A value of which nothing is known yet."""
_INTEGER_BOOLS = frozenset({"floordiv", "mod", "shl", "shr", "pow"})
_SMALL = 64


def _subscript_fix(expr: Expr) -> str:
    if any(isinstance(node, Call) and node.name == "truediv" for node in walk(expr)):
        return "divide with //, which gives an integer."
    return (
        "make one of the factors a constant known at compile time (an int parameter), or give the product an index "
        "of its own."
    )


def _left_chain(expr: Expr, is_built: Callable[[Expr], bool]) -> list[Expr]:
    """The expression and the left operands below it, so that a long sum is built without recursion: up to one that is
    built already, and without it."""
    chain: list[Expr] = []
    while not is_built(expr):
        chain.append(expr)
        if not (isinstance(expr, Call) and expr.name in ("add", "sub", "mul", "maximum", "minimum")):
            break
        expr = expr.args[0]
    return chain


def _as_leaf(value: Typed, reads: Reads | None) -> Typed:
    """A read, an index, a NumPy scalar or an explicit conversion, converted as the enclosing sum asks; integers that a
    float may not hold are computed with first."""
    if reads is None or not isinstance(value.type, DType) or value.type == reads.dtype:
        return value
    if reads.dtype.is_float and value.type.is_integer and value.type.bits == i64.bits and not reads.always:
        return value
    if reads.always or promote(value.type, reads.dtype) == reads.dtype:
        return Typed(ir.Cast(value.node, reads.dtype), reads.dtype)
    return value


def _integer_form(expr: Call, args: tuple[Typed, ...]) -> Type:
    """The operand type of an operation that NumPy does on i8 where both sides are boolean."""
    operand = join(arg.type for arg in args)
    return i8 if operand == bool_ else WEAK_INT if operand == WEAK_BOOL else operand


def _require_integer(expr: Call, args: Sequence[Typed], operand: Type) -> None:
    if not _is_float(operand):
        return
    kinds = [concrete(arg.type) for arg in args]
    _refuse_no_integer(expr, kinds, operand)
    text, kind = next((source_text(a), k) for a, k in zip(expr.args, kinds, strict=True) if k.is_float)
    what, fix = f"'{expr.name}' shifts integers, and '{text}' is {kind}", "convert the operand: po.cast(..., i32)."
    raise DTypeError(what, where=expr.span, fix=fix, facts={"dtype": str(concrete(operand))})


def _refuse_no_integer(expr: Call, kinds: Sequence[DType], operand: Type) -> None:
    """Raises `DTypeError` for u64 and a signed integer, for which NumPy has f64."""
    if any(kind.is_float for kind in kinds):
        return
    is_shift = expr.name in ("shl", "shr")  # of which the left operand gives the dtype
    turned = 1 if is_shift else next(n for n, kind in enumerate(kinds) if kind.kind == "i")
    raise DTypeError(
        f"'{expr.name}' of {kinds[0]} and {kinds[1]}: no integer dtype holds both",
        where=expr.span,
        fix=f"convert one: po.cast({source_text(expr.args[turned])}, {kinds[1 - turned]}).",
        facts={"dtype": str(concrete(operand))},
    )


def _is_float(type_: Type) -> bool:
    return type_ == WEAK_FLOAT or (isinstance(type_, DType) and type_.is_float)


_ADAPTED: Mapping[str, Callable[..., Type]] = {
    "as_argument": as_float,
    "beside_float": lambda own: join((own, WEAK_FLOAT)),
    "as_wide": lambda own: f32 if own in (f16, bf16) else own,
    "in_dtype_of": lambda own, like: like,
    "beside_condition": lambda own: own,
}
"""The dtypes of values that functions ask for by name: as a function of floats takes them, as beside a float of Python,
16-bit floats in f32 and back, and what stands beside a condition in `&` (of an integer the lowest bit counts, as in
True & x)."""


def _weak_or(operand: Type, weak: WeakType, strong: DType) -> Type:
    if isinstance(operand, Unknown):
        return UNKNOWN
    return weak if isinstance(operand, WeakType) else strong


def _is_small(node: ir.Expr) -> bool:
    return next(islice(ir.walk(node), _SMALL, None), None) is None
