"""Expressions of a loop program as CUDA C++ text: what `codegen_c` prints, with CUDA's functions and plain division.

Loop variables are `int` where every index of the kernel is proved to fit, else `int64_t`. The functions of one
argument are CUDA's own, with the error bounds of its programming guide: 2 ulp or better, but for f32 `tan` (4),
`sinh` (3) and `pow` (4), f64 alike.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from polyopt.codegen_c import c_helpers
from polyopt.codegen_c.c_expressions import CExpressions, Text, is_index, simple_product, simple_sum
from polyopt.codegen_c.identifiers import Identifiers
from polyopt.codegen_cuda.instructions import INSTRUCTIONS
from polyopt.codegen_cuda.intervals import Interval, as_number, interval
from polyopt.codegen_cuda.source import RECORD
from polyopt.dsl.ir import Const, Op, Var
from polyopt.dtypes import DType, i64
from polyopt.loops.ir import Buffer, Check, Expr, integer, walk_expr

_CHOICE, _LOGIC, _COMPARE, _SUM, _PRODUCT, _PREFIX, _ATOM = range(7)

_PROVIDED = {f"po_{name}" for name in ("value", "negative", "bits", "float", "inside")}
_PROVIDED |= {f"po_{way}_{kind}" for way in ("to", "from", "round") for kind in ("f16", "bf16")}
_PROVIDED |= {name for one in INSTRUCTIONS for name in (one.helper, one.group)}
"""Helpers of the C printer that the device header has."""

_SAME_NAME = {
    *("exp", "exp2", "expm1", "log", "log2", "log1p", "sin", "cos", "tan", "sinh", "cosh", "tanh", "erf", "pow"),
}
_MATH = re.compile(r"\bpolyopt_(\w+?)_(f32|f64)\(")
_RENAMED = {"po_minimum_f32(": "po_min_nan(", "po_maximum_f32(": "po_max_nan("}


class CudaExpressions(CExpressions):
    """Prints expressions of one kernel.

    ranges: where each variable lies; replicated: buffers that every thread keeps a copy of in registers
    place:  how to print an element of a buffer that has a place of its own, by name
    named:  index expressions that have a name in the text
    """

    def __init__(self, names: Identifiers, buffers: Mapping[str, Buffer]) -> None:
        super().__init__(names, buffers)
        self.ranges: dict[str, Interval] = {}
        self.named: dict[Expr, str] = {}
        self.place: dict[str, Callable[[tuple[Expr, ...]], Text]] = {}

    def value(self, expr: Expr, *, is_data: bool = False) -> Text:
        if self.named and expr in self.named:
            return Text(self.named[expr])
        if isinstance(expr, Op) and self._is_plain(expr, is_data):
            special = self._index(expr)
            if special is not None:
                return special
        return super().value(expr, is_data=is_data)

    def operand(self, of: Op[Expr], arg: Expr, *, is_data: bool) -> Text:
        found = super().operand(of, arg, is_data=is_data)
        stays = self._is_plain(of, is_data) and of.name not in ("floordiv", "mod")  # functions of 64-bit numbers
        return found if stays else self._as_64_bits(arg, found)

    def stored(self, expr: Expr) -> Text:
        """What an element becomes."""
        return self._as_64_bits(expr, self.value(expr, is_data=True))

    def _is_plain(self, expr: Op[Expr], is_data: bool) -> bool:
        """Whether C's own operators say an operation: one of indices that does not wrap."""
        return is_index(expr) and not (is_data and self._may_wrap(expr))

    def _may_wrap(self, expr: Expr) -> bool:
        """As for C, but where the ranges of the variables bound each part."""
        return super()._may_wrap(expr) and not all(map(self._is_bounded, walk_expr(expr)))

    def _is_bounded(self, expr: Expr) -> bool:
        if isinstance(expr, Const) or expr.dtype != i64:
            return True
        ends = (as_number(end) for end in interval(expr, self.ranges))
        return all(end is not None and -(1 << 63) <= end < 1 << 63 for end in ends)

    def _as_64_bits(self, expr: Expr, text: Text) -> Text:
        """An index that becomes a 64-bit number: NVVM counts the iterations of some loops wrong whose index is one
        besides, and does not see through `po_value` that it is (decision 0050)."""
        varies = any(isinstance(node, Var) and node.name in self.ranges for node in walk_expr(expr))
        return Text(f"po_value({text.text})") if varies and _is_subscript(expr) else text

    def _index(self, expr: Op[Expr]) -> Text | None:
        """Index arithmetic that plain C says, where the operands are not negative; sums without parentheses."""
        if expr.name == "add":
            return Text(" + ".join(self.value(arg).within(_COMPARE) for arg in expr.args), _SUM)
        if expr.name in ("minimum", "maximum"):
            return Text(f"po_{expr.name[:3]}({', '.join(self.text(arg) for arg in expr.args)})")
        if expr.name in ("floordiv", "mod") and self._is_natural(expr.args[0]):
            left, right = expr.args
            if isinstance(right, Const) and int(right.value) > 0:
                sign = "/" if expr.name == "floordiv" else "%"
                return Text(f"{self.value(left).within(_PRODUCT - 1)} {sign} {self.value(right).text}", _PRODUCT)
        return None

    def _is_natural(self, expr: Expr) -> bool:
        low = as_number(interval(expr, self.ranges)[0])
        return low is not None and low >= 0

    def guard(self, name: str, indices: tuple[Expr, ...], mask: Expr | None, checks: tuple[Check, ...]) -> Text | None:
        text = super().guard(name, indices, mask, checks)
        return None if text is None else Text(text.text.replace("&error)", f"{RECORD})"), text.level)

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...], unit: int) -> Expr:
        """Elements between an element and the first; of C-contiguous buffers without a detour over bytes."""
        if buffer.strides is not None or unit == 1:
            return super().offset(buffer, indices, unit)
        total: Expr = integer(0)
        step: Expr = integer(1)
        for index, extent in reversed(list(zip(indices, buffer.shape, strict=True))):
            total = simple_sum(simple_product(index, step), total)
            step = simple_product(extent, step)
        return total

    def element(self, name: str, indices: tuple[Expr, ...]) -> Text:
        place = self.place.get(name)
        return self.plain_element(name, indices) if place is None else place(indices)

    def plain_element(self, name: str, indices: tuple[Expr, ...], start: str = "") -> Text:
        """An element of a buffer as if it had no place of its own; its indices may read elements that have one.

        start: a product, elements in front of the buffer's first one
        """
        buffer = self._buffers[name]
        if buffer.swizzled:
            return self._swizzled(name, indices, start)
        if not start:
            return super().element(name, indices)
        offset = self.value(self.offset(buffer, indices, buffer.dtype.itemsize))
        return Text(f"{self._names.arrays[name]}[{start} + {offset.within(_COMPARE)}]")

    def _swizzled(self, name: str, indices: tuple[Expr, ...], start: str) -> Text:
        """An element whose place in its last two dimensions is exchanged."""
        buffer, item = self._buffers[name], self._buffers[name].dtype.itemsize
        nowhere = (integer(0),) * len(indices)
        outside = self.offset(buffer, (*indices[:-2], *nowhere[-2:]), item)
        inside = self.text(self.offset(buffer, (*nowhere[:-2], *indices[-2:]), item))
        before = f"{start} + " * bool(start)
        before += "" if outside == integer(0) else f"{self.value(outside).within(_SUM)} + "
        exchanged = "po_swizzled" if buffer.swizzled == "lines" else "po_in_atom"
        return Text(f"{self._names.arrays[name]}[{before}{exchanged}<{item}>({inside})]")


def _is_subscript(expr: Expr) -> bool:
    """Whether an expression is an index or arithmetic of indices, held as such."""
    return expr.dtype == i64 and (isinstance(expr, Var) or is_index(expr))


def in_cuda(text: str) -> str:
    """Text with the names of CUDA's functions."""

    def renamed(match: re.Match[str]) -> str:
        name, kind = match[1], match[2]
        return f"{name}{'f' if kind == 'f32' else ''}(" if name in _SAME_NAME else f"po_{name}("

    text = _MATH.sub(renamed, text)
    for old, new in _RENAMED.items():
        text = text.replace(old, new)
    return text


_NEGATION: Mapping[str, str] = {
    "neg": "static inline $T $name($T a) { return ($T)po_negative((int32_t)a); }",
    "abs": "static inline $T $name($T a) { return a < 0 ? ($T)po_negative((int32_t)a) : a; }",
    "floordiv": """\
static inline $T $name($T a, $T b)
{
    if (b == 0) return 0;
    if (b == -1) return ($T)po_negative((int32_t)a);
    return ($T)po_value(a / b - (a % b != 0 && (a % b < 0) != (b < 0)));
}""",
    "mod": """\
static inline $T $name($T a, $T b)
{
    if (b == 0 || b == -1) return 0;
    return ($T)po_value(a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0));
}""",
}
"""Of signed integers of up to 32 bits: negations that ptxas does not drop (decision 0050)."""

_NARROW: Mapping[str, str] = {
    "neg": _NEGATION["neg"],
    "add": "static inline $T $name($T a, $T b) { return ($T)po_value((int32_t)(($U)a + ($U)b)); }",
    "sub": "static inline $T $name($T a, $T b) { return ($T)po_value((int32_t)(($U)a - ($U)b)); }",
    "mul": "static inline $T $name($T a, $T b) { return ($T)po_value((int32_t)(($W)a * ($W)b)); }",
}
"""Of integers of less than 32 bits: arithmetic that stays one of 32 bits until its result is cut."""


def _template(operation: str, dtype: DType) -> str:
    own: Mapping[str, str] = {}
    if dtype.is_integer and dtype.bits <= 32:
        own = {**(_NEGATION if dtype.kind == "i" else {}), **(_NARROW if dtype.bits < 32 else {})}
    return own.get(operation) or c_helpers.template(operation, dtype)


def helpers(body: str) -> str:
    """The small functions that a text in CUDA's names uses, as device functions."""
    found = c_helpers.definitions(body, frozenset(_PROVIDED), _template)
    return found.replace("static inline ", "static PO_DEVICE ")
