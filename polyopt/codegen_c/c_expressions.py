"""Expressions of a loop program as C11 text, with the parentheses that C and its readers want."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import assert_never

from polyopt.classes import dataclass
from polyopt.codegen_c.c_helpers import helper_name, stored_type, value_type
from polyopt.codegen_c.identifiers import Identifiers
from polyopt.codegen_c.workspace import byte_strides, calculated
from polyopt.dsl.builtins import BUILTINS
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import DType, bf16, bool_, f16, f32, f64, i64
from polyopt.loops.ir import Buffer, Check, Expr, Load, integer, walk_expr
from polyopt.loops.scan import both

# How tightly C binds, loosest first.
_CHOICE, _LOGIC, _COMPARE, _SUM, _PRODUCT, _PREFIX, _ATOM = range(7)

_INFIX: Mapping[str, tuple[int, str]] = {
    "add": (_SUM, "+"),
    "sub": (_SUM, "-"),
    "mul": (_PRODUCT, "*"),
    "truediv": (_PRODUCT, "/"),
    "lt": (_COMPARE, "<"),
    "le": (_COMPARE, "<="),
    "gt": (_COMPARE, ">"),
    "ge": (_COMPARE, ">="),
    "eq": (_COMPARE, "=="),
    "ne": (_COMPARE, "!="),
}
_BITS: Mapping[str, str] = {"and": "&", "or": "|", "xor": "^"}
_ON_BOOL: Mapping[str, str] = {"and": "&&", "or": "||", "xor": "!=", "minimum": "&&", "maximum": "||"}
_LIBRARY: Mapping[str, str] = {"abs": "fabs", "floor": "floor", "ceil": "ceil", "round": "rint", "sqrt": "sqrt"}
_EXACT = frozenset({"neg", "abs", "sign", "minimum", "maximum", "select", "floor", "ceil", "round"})
_ANY = 1 << 64
_COMBINE = {"sum": "add", "prod": "mul", "max": "maximum", "min": "minimum", "any": "or", "all": "and"}


@dataclass(frozen=True, slots=True)
class Text:
    """C text and how tightly its outermost operator binds."""

    text: str
    level: int = _ATOM

    def within(self, level: int) -> str:
        """The text as an operand, in parentheses where it binds no tighter than `level`."""
        return self.text if self.level > level else f"({self.text})"


class CExpressions:
    """Prints expressions; knows the buffers and the C names of things."""

    def __init__(self, names: Identifiers, buffers: Mapping[str, Buffer]) -> None:
        self._names = names
        self._buffers = buffers

    def text(self, expr: Expr) -> str:
        return self.value(expr).text

    def value(self, expr: Expr, *, is_data: bool = False) -> Text:
        """is_data: what elements are made of, where integers may wrap; else subscripts and bounds, where none does
        but in conditions, and where elements are among what they are made of"""
        is_data = is_data or expr.dtype.is_bool or any(isinstance(node, Load | Cast) for node in walk_expr(expr))
        match expr:
            case Const():
                return constant(expr)
            case Var(name):
                return Text(self._names.variables.get(name, name))
            case Cast(arg):
                return cast(self.value(arg, is_data=is_data), arg.dtype, expr.dtype)
            case Load():
                return self._load(expr)
            case Op():
                args = _chosen(*expr.args) if expr.name == "select" else expr.args
                operands = [self.operand(expr, arg, is_data=is_data) for arg in args]
                if is_index(expr) and not (is_data and self._may_wrap(expr)):
                    return _index_operation(expr, operands)
                return self._checked_first(expr, operation(expr.name, expr.args[-1].dtype, operands))
            case _:
                assert_never(expr)

    def _checked_first(self, expr: Op[Expr], text: Text) -> Text:
        """An operation after the checks of operands that C may leave out: an error is one whatever data decides."""
        if expr.name != "select" and not (expr.args[-1].dtype.is_bool and _ON_BOOL.get(expr.name) in ("&&", "||")):
            return text
        rest = (node for arg in expr.args[1:] for node in walk_expr(arg))
        checked = dict.fromkeys(node for node in rest if isinstance(node, Load) and node.checks)
        guards = (self.guard(load.buffer, load.indices, load.mask, load.checks) for load in checked)
        texts = dict.fromkeys(guard.within(_PREFIX - 1) for guard in guards if guard is not None)
        return Text(f"({''.join(f'(void){guard}, ' for guard in texts)}{text.text})") if texts else text

    def operand(self, of: Op[Expr], arg: Expr, *, is_data: bool) -> Text:
        """An operand of an operation."""
        return self.value(arg, is_data=is_data)

    def _may_wrap(self, expr: Expr) -> bool:
        """Whether arithmetic of variables, as a value, may leave 64 bits; operands of a custom reduction are data."""
        if any(isinstance(node, Var) and node.name not in self._names.variables for node in walk_expr(expr)):
            return True
        return _growth(expr) >= 1 << 20

    # --- elements ------------------------------------------------------------------------------------------

    def _load(self, load: Load) -> Text:
        element = from_stored(self.element(load.buffer, load.indices), load.dtype)
        guard = self.guard(load.buffer, load.indices, load.mask, load.checks)
        if guard is None:
            return element
        zero = constant(Const(0, load.dtype)).text
        return Text(f"{guard.within(_CHOICE)} ? {element.within(_CHOICE)} : {zero}", _CHOICE)

    def guard(self, name: str, indices: tuple[Expr, ...], mask: Expr | None, checks: tuple[Check, ...]) -> Text | None:
        """The condition on which an element is accessed: its mask, and checked subscripts in range."""
        parts = [] if mask is None else [self.value(mask)]
        for check in checks:
            extent = self.text(self._buffers[name].shape[check.dimension])
            index = self.text(indices[check.dimension])
            parts.append(Text(f"po_inside({index}, {extent}, {check.site}, &error)"))
        if not parts:
            return None
        return parts[0] if len(parts) == 1 else Text(" && ".join(part.within(_LOGIC) for part in parts), _LOGIC)

    def element(self, name: str, indices: tuple[Expr, ...]) -> Text:
        """The stored element as an lvalue, or its load by address where it may not be aligned."""
        buffer = self._buffers[name]
        if is_typed(buffer):
            return Text(f"{self._names.arrays[name]}[{self.text(self.offset(buffer, indices, buffer.dtype.itemsize))}]")
        return Text(f"{helper_name('load', buffer.dtype)}({self.address(name, indices, 'const char *')})")

    def compared(self, expr: Expr) -> str:
        """The text as an operand of a comparison: a bound may be a choice, which binds less tightly."""
        return self.value(expr).within(_COMPARE)

    def address(self, name: str, indices: tuple[Expr, ...], kind: str) -> str:
        """The address of an element, as a pointer of `kind` to bytes."""
        offset = self.value(self.offset(self._buffers[name], indices, 1))
        return f"({kind}){self._names.arrays[name]} + {offset.within(_SUM)}"

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...], unit: int) -> Expr:
        """Units of so many bytes between an element and the first."""
        total: Expr = integer(0)
        for index, stride in zip(indices, byte_strides(buffer), strict=True):
            step = integer(int(stride.value) // unit) if isinstance(stride, Const) else stride
            if unit > 1 and not isinstance(stride, Const):
                step = calculated("floordiv", stride, integer(unit))
            total = simple_sum(total, simple_product(index, step))
        return total

    # --- reductions ----------------------------------------------------------------------------------------

    def combined(self, reducer: Reducer, old: Text, value: Text, call: Callable[[Reducer], str]) -> Text:
        """`old` combined with `value`; `call` gives the function of a custom reducer.

        The value comes first where C may leave out what follows: its subscripts are to be checked.
        """
        if reducer.name == "custom":
            return Text(f"{call(reducer)}({old.text}, {value.text})")
        return operation(
            _COMBINE[reducer.name], reducer.dtype, [value, old] if reducer.dtype == bool_ else [old, value]
        )


def is_typed(buffer: Buffer) -> bool:
    """Whether every element is a whole number of items away from the first."""
    if buffer.strides is None:
        return True
    return all(isinstance(s, Const) and int(s.value) % buffer.dtype.itemsize == 0 for s in buffer.strides)


def simple_product(left: Expr, right: Expr) -> Expr:
    for factor, other in ((left, right), (right, left)):
        if isinstance(factor, Const) and factor.value in (0, 1):
            return other if factor.value else integer(0)
    return calculated("mul", left, right)


def simple_sum(left: Expr, right: Expr) -> Expr:
    for term, other in ((left, right), (right, left)):
        if isinstance(term, Const) and term.value == 0:
            return other
    return calculated("add", left, right)


def _chosen(condition: Expr, then: Expr, otherwise: Expr) -> tuple[Expr, Expr, Expr]:
    """The operands of a choice: C evaluates the arm that is taken, whose loads need not ask for the condition again."""
    fails: Expr = Op("not", (condition,), bool_)
    return condition, _unmasked(then, _parts(condition)), _unmasked(otherwise, _parts(fails))


def _unmasked(expr: Expr, known: Collection[Expr]) -> Expr:
    """The expression without what masks of loads ask that is known to hold."""
    match expr:
        case Const() | Var():
            return expr
        case Op(args=args):
            return replace(expr, args=tuple(_unmasked(arg, known) for arg in args))
        case Cast(arg=arg):
            return replace(expr, arg=_unmasked(arg, known))
        case Load(indices=indices, mask=mask):
            left: Expr | None = None
            for part in () if mask is None else _parts(mask):
                left = left if part in known else both(left, part)
            return replace(expr, indices=tuple(_unmasked(index, known) for index in indices), mask=left)
        case _:
            assert_never(expr)


def _parts(condition: Expr) -> tuple[Expr, ...]:
    """What a condition says, one by one."""
    match condition:
        case Op("and", args):
            return tuple(part for arg in args for part in _parts(arg))
        case Op("not", (Op("not", (inner,)),)):
            return _parts(inner)
        case _:
            return (condition,)


def from_stored(element: Text, dtype: DType) -> Text:
    if dtype.is_bool:
        return Text(f"{element.within(_COMPARE)} != 0", _COMPARE)
    if dtype in (f16, bf16):
        return Text(f"po_from_{dtype}({element.text})")
    return element


def to_stored(value: Text, dtype: DType) -> Text:
    """A value as an element holds it. One that has just been rounded so is not rounded again."""
    if dtype not in (f16, bf16):
        return value
    rounded = f"po_round_{dtype}("
    if value.level == _ATOM and value.text.startswith(rounded):
        return Text(f"po_to_{dtype}({value.text.removeprefix(rounded)}")
    return Text(f"po_to_{dtype}({value.text})")


# --- constants and conversions --------------------------------------------------------------------------------


def constant(const: Const) -> Text:
    value, dtype = const.value, const.dtype
    if dtype.is_float:
        return _float_constant(float(value), dtype)
    if dtype.is_bool:
        return Text("true" if value else "false")
    if dtype == i64:
        return _signed(int(value), 64)
    return Text(
        _signed(int(value), 32).text if dtype.kind == "i" else f"{int(value)}u{'ll' if dtype.bits == 64 else ''}"
    )


def _signed(value: int, bits: int) -> Text:
    if value == -(1 << (bits - 1)):
        return Text(f"INT{bits}_MIN")
    suffix = "" if abs(value) < 1 << 31 else "ll"
    return Text(f"{value}{suffix}", _PREFIX if value < 0 else _ATOM)


def _float_constant(value: float, dtype: DType) -> Text:
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    level = _PREFIX if sign else _ATOM
    if math.isnan(value):
        return Text("(double)NAN" if dtype == f64 else "NAN", _PREFIX if dtype == f64 else _ATOM)
    if math.isinf(value):
        return Text(f"{sign}INFINITY", level)
    short = repr(abs(value)) if abs(value) < 1e16 and value == round(value, 6) else abs(value).hex()
    literal = Text(f"{sign}{short}{'' if dtype == f64 else 'f'}", level)
    return Text(f"po_round_{dtype}({literal.text})") if dtype in (f16, bf16) else literal


def cast(value: Text, source: DType, target: DType) -> Text:
    """NumPy's astype."""
    if source == target:
        return value
    if target.is_bool:
        return Text(f"{value.within(_COMPARE)} != 0", _COMPARE)
    if target in (f16, bf16):
        if source == f64:
            value = Text(f"po_narrow({value.text})") if target == f16 else _converted(value, "float")
        return Text(f"po_round_{target}({value.text})")
    if source.is_float and target.is_integer:
        return _float_to_int(value, target)
    if source in (f16, bf16) and target == f32:
        return value
    return _converted(value, value_type(target))


def _float_to_int(value: Text, target: DType) -> Text:
    if target.name in ("i32", "i64", "u64"):
        return Text(f"po_to_{target}({value.text})")
    wide = "i64" if target.name == "u32" else "i32"
    return _converted(Text(f"po_to_{wide}({value.text})"), value_type(target))


def _converted(value: Text, kind: str) -> Text:
    return Text(f"({kind}){value.within(_PREFIX - 1)}", _PREFIX)


# --- operations -----------------------------------------------------------------------------------------------


def is_index(expr: Expr) -> bool:
    """Whether an expression is arithmetic of loop variables and sizes, which cannot overflow."""
    if not (isinstance(expr, Op) and expr.args[-1].dtype == i64):
        return False
    nodes = list(walk_expr(expr))
    small = all(not isinstance(node, Const) or abs(node.value) < 1 << 40 for node in nodes)
    return small and not any(isinstance(node, Load | Cast) for node in nodes)


def _growth(expr: Expr) -> int:
    """How many times as large as its largest variable an index may be, `_ANY` where no constants say so."""
    match expr:
        case Const(value):
            found = abs(int(value))
        case Var():
            found = 1
        case Op("neg", (arg,)):
            found = _growth(arg)
        case Op("floordiv", (arg, Const(value))) if int(value) > 0:
            found = _growth(arg)
        case Op("mod", (arg, Const(value))) if int(value) > 0:
            found = max(_growth(arg), int(value))
        case Op("minimum" | "maximum", args):
            found = max(map(_growth, args))
        case Op("mul", (arg, Const() as factor) | (Const() as factor, arg)):
            found = _growth(arg) * _growth(factor)
        case Op(name, args) if name in ("add", "sub") or expr.dtype.is_bool:
            found = sum(map(_growth, args))
        case _:
            found = _ANY
    return min(found, _ANY)


def _index_operation(expr: Op[Expr], operands: list[Text]) -> Text:
    if expr.name in ("add", "sub", "mul"):
        return _infix(expr.name, operands)
    if expr.name == "neg":
        return Text(f"-{operands[0].within(_PREFIX)}", _PREFIX)
    return operation(expr.name, i64, operands)


def _infix(name: str, operands: list[Text]) -> Text:
    level, sign = _INFIX[name]
    left, right = operands
    first = left.within(level - 1) if name in ("add", "sub", "mul") else left.within(level)
    return Text(f"{first} {sign} {right.within(level)}", level)


def operation(name: str, dtype: DType, operands: list[Text]) -> Text:
    """An operation of `dsl.builtins` on operands of `dtype`."""
    if name == "select":
        condition, then, otherwise = operands
        return Text(f"{condition.within(_CHOICE)} ? {then.within(_CHOICE)} : {otherwise.within(_CHOICE)}", _CHOICE)
    if dtype.is_bool:
        return _bool_operation(name, operands)
    if BUILTINS[name].result == "bool" and name in _INFIX:
        if not dtype.is_float and operands[0] == operands[1]:
            return Text("true" if name in ("le", "ge", "eq") else "false")  # compilers warn of what is always so
        return _infix(name, operands)
    if dtype.is_float:
        result = _float_operation(name, f32 if dtype in (f16, bf16) else dtype, operands)
        is_exact = name in _EXACT or BUILTINS[name].result == "bool"
        return result if is_exact or dtype not in (f16, bf16) else Text(f"po_round_{dtype}({result.text})")
    return _int_operation(name, dtype, operands)


def _bool_operation(name: str, operands: list[Text]) -> Text:
    if name == "not":
        return Text(f"!{operands[0].within(_PREFIX - 1)}", _PREFIX)
    sign = _ON_BOOL.get(name) or _INFIX[name][1]
    level = _LOGIC if sign in ("&&", "||") else _COMPARE
    return Text(f" {sign} ".join(operand.within(level) for operand in operands), level)


def _float_operation(name: str, dtype: DType, operands: list[Text]) -> Text:
    if name in _INFIX:
        return _infix(name, operands)
    texts = ", ".join(operand.text for operand in operands)
    if name == "neg":
        return Text(f"-{operands[0].within(_PREFIX)}", _PREFIX)
    if name in _LIBRARY:
        return Text(f"{_LIBRARY[name]}{'' if dtype == f64 else 'f'}({texts})")
    if name in ("isnan", "isinf"):
        return Text(f"{name}({texts}) != 0", _COMPARE)
    if name in ("minimum", "maximum", "floordiv", "mod", "sign"):
        return Text(f"{helper_name(name, dtype)}({texts})")
    return Text(f"polyopt_{name}_{dtype}({texts})")


def _int_operation(name: str, dtype: DType, operands: list[Text]) -> Text:
    texts = ", ".join(operand.text for operand in operands)
    if name in _BITS:
        combined = Text(f"{operands[0].within(_SUM)} {_BITS[name]} {operands[1].within(_SUM)}", _CHOICE)
        return combined if dtype.bits >= 32 else _converted(combined, value_type(dtype))
    if name == "not":
        return _converted(Text(f"~{operands[0].within(_PREFIX)}", _PREFIX), value_type(dtype))
    return Text(f"{helper_name(name, dtype)}({texts})")


def pointer_type(dtype: DType, *, is_written: bool) -> str:
    return f"{'' if is_written else 'const '}{stored_type(dtype)} *"
