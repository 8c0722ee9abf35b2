"""Draws expressions over the tensors and indices at hand.

Every float value is a whole number small enough for its dtype, so that sums are exact in whatever order they are
taken: each expression carries a bound, and is clipped where the bound would grow too large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from math import prod
from random import Random

from polyopt.classes import dataclass
from polyopt.dtypes import from_name, promote
from polyopt.fuzz.case import INDICES, Node, extent_of

Axis = tuple[str, str]
"""An index variable and its extent."""

CLIP = 8
FLOATS = ("f16", "bf16", "f32", "f64")
LIMITS: Mapping[str, float] = {"f16": 1 << 10, "bf16": 1 << 7, "f32": 1 << 21, "f64": 1 << 50}
"""Greatest bounds of float values; sums of the first two are taken in f32."""
EXACT_FUNCTIONS = ("sqrt", "floor", "ceil", "round", "isnan", "isinf", "sign", "abs")
"""Functions that have the same bits everywhere."""
FUNCTIONS = (
    *EXACT_FUNCTIONS,
    *("exp", "exp2", "log", "log2", "log1p", "expm1", "rsqrt", "sin", "cos", "tan", "tanh", "sinh", "cosh"),
    *("sigmoid", "erf", "gelu", "silu", "softplus", "pow"),
)
_ACCUMULATORS: Mapping[str, str] = dict.fromkeys(("bool_", "i8", "i16", "u8", "u16"), "i32")


@dataclass(frozen=True, slots=True)
class Known:
    """A tensor that expressions may read. subscripts: for a gather: the extent that its values stay below."""

    name: str
    dims: tuple[str, ...]
    dtype: str
    bound: float
    subscripts: str | None = None


@dataclass(slots=True)
class Writer:
    """Draws expressions. sizes: values of the sizes, and of steps `T`.

    rough:     floats need not be whole numbers, so that functions and dtypes that meet as they are can be drawn too
    functions: of floats, that may be drawn then
    """

    random: Random
    sizes: Mapping[str, int]
    dtypes: tuple[str, ...]
    known: list[Known] = field(default_factory=list)
    rough: bool = False
    functions: tuple[str, ...] = ()

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def extent(self, dim: str) -> int:
        return extent_of(dim, self.sizes)

    # --- values ------------------------------------------------------------------------------------------------

    def value(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        """A value of the dtype over the indices in scope, small enough for it."""
        if dtype == "bool_":
            return self.truth(scope, depth)
        if depth <= 0 or self.chance(0.15):
            return self.leaf(scope, dtype)
        draw = self.random.choice(
            (
                self.binary,
                self.binary,
                self.binary,
                self.unary,
                self.choice,
                self.division,
                self.reduction,
                self.converted,
                *((self.mixed, self.mixed, self.function, self.function) if self.rough else ()),
            )
        )
        return self.bounded(draw(scope, dtype, depth - 1))

    def leaf(self, scope: tuple[Axis, ...], dtype: str) -> Node:
        readable = [t for t in self.known if t.dtype == dtype and t.subscripts is None]
        if readable and self.chance(0.85):
            return self.read(self.random.choice(readable[-4:] if self.chance(0.5) else readable), scope)
        others = [t for t in self.known if t.subscripts is None]
        if others and self.chance(0.4):
            return self.cast(self.read(self.random.choice(others), scope), dtype)
        return self.index_value(scope, dtype)

    def index_value(self, scope: tuple[Axis, ...], dtype: str) -> Node:
        """A number, an affine function of the indices, or a hash of them, which leaves 64 bits."""
        if not scope or self.chance(0.3):
            return literal(self.random.randint(0, 3), dtype)
        if self.chance(0.15):
            return self.cast(self.hashed(scope), dtype)
        name, size = self.random.choice(scope)
        factor, shift = self.random.choice((1, 1, 2, 3)), self.random.randint(0, 2)
        return self.cast(
            Node(f"({factor}*{name} + {shift})", dtype="i64", bound=factor * self.extent(size) + shift), dtype
        )

    def hashed(self, scope: tuple[Axis, ...]) -> Node:
        """A small number of a product of indices that leaves 64 bits as a rule."""
        r = self.random
        factors = (
            f"({r.choice(scope)[0]} + {r.randint(0, 2)}) * {r.choice((73856093, 2**33 + 1, 2**50))}" for _ in "12"
        )
        product, most = " * ".join(f"({factor})" for factor in factors), r.randint(2, 7)
        quotient = r.choice((product, f"({product}) // {r.randint(2, 5)}", f"po.maximum({product}, 1)"))
        return Node(f"({quotient} % {most})", dtype="i64", bound=most)

    def cast(self, node: Node, dtype: str) -> Node:
        """The node in another dtype, clipped where that has no such numbers."""
        if node.dtype == dtype:
            return node
        if node.dtype in FLOATS:
            node = clipped(node, 0 if dtype[0] == "u" else -CLIP) if dtype not in FLOATS else node
        elif dtype in FLOATS and node.bound > LIMITS[dtype]:
            node = clipped(node, 0 if node.dtype[0] == "u" else -CLIP)
        bound = node.bound if dtype in FLOATS else greatest(dtype)
        return Node(f"po.cast({{}}, po.{dtype})", (node,), dtype, bound)

    def bounded(self, node: Node) -> Node:
        return clipped(node) if node.dtype in FLOATS and node.bound > LIMITS[node.dtype] else node

    def small(self, node: Node) -> Node:
        """The node, clipped so that products and recurrences of it stay small too."""
        return clipped(node) if node.dtype in FLOATS and node.bound > CLIP else node

    def binary(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        a, b = self.value(scope, dtype, depth), self.value(scope, dtype, depth)
        operators = ["+", "+", "-", "*", "max", "min"] + ["&", "|", "^"] * (dtype not in FLOATS)
        match self.random.choice(operators):
            case "*":
                if dtype in FLOATS and a.bound * b.bound > LIMITS[dtype]:
                    a, b = self.small(a), self.small(b)
                return Node("({} * {})", (a, b), dtype, a.bound * b.bound)
            case "max":
                return Node("po.maximum({}, {})", (a, b), dtype, max(a.bound, b.bound))
            case "min":
                return Node("po.minimum({}, {})", (a, b), dtype, max(a.bound, b.bound))
            case "+" | "-" as sign:
                return Node(f"({{}} {sign} {{}})", (a, b), dtype, a.bound + b.bound)
            case sign:
                return Node(f"({{}} {sign} {{}})", (a, b), dtype, greatest(dtype))

    def unary(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        a = self.value(scope, dtype, depth)
        if dtype not in FLOATS and self.chance(0.4):
            template = self.random.choice(("(~{})", "({} << 1)", "({} >> 1)", "({} << 3)"))
            return Node(template, (a,), dtype, greatest(dtype))
        template = self.random.choice(("(-{})", "po.abs({})", "po.sign({})", "po.relu({})", "({} * 2)", "({} + 1)"))
        return Node(template, (a,), dtype, 2 * a.bound + 1)

    def division(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        a = self.value(scope, dtype, depth)
        if dtype not in FLOATS and self.chance(0.3):
            b = self.value(scope, dtype, depth)
            return Node(self.random.choice(("({} // {})", "({} % {})")), (a, b), dtype, greatest(dtype))
        divisor = self.random.choice((2, 3, 4, 5) if dtype[0] == "u" else (2, 3, 4, 5, -2, -3))
        return Node(self.random.choice((f"({{}} // {divisor})", f"({{}} % {divisor})")), (a,), dtype, a.bound + 8)

    def choice(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        condition = self.condition(scope) if scope and self.chance(0.6) else self.truth(scope, depth)
        a, b = self.value(scope, dtype, depth), self.value(scope, dtype, depth)
        return Node("po.where({}, {}, {})", (condition, a, b), dtype, max(a.bound, b.bound))

    def converted(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        return self.cast(self.value(scope, self.random.choice(self.dtypes), depth), dtype)

    def mixed(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        """Two values of dtypes of their own, or a value and a number of Python."""
        r = self.random
        numeric = [name for name in self.dtypes if name != "bool_"] or ["i32"]
        a = self.value(scope, r.choice(numeric), depth)
        if self.chance(0.4):
            numbers = (0.5, -1.5, -0.0, 3, 100) if a.dtype in FLOATS else (0, 1, 3, 100)
            sign, number, extreme = r.choice("+-*"), r.choice(numbers), r.choice(("maximum", "minimum"))
            text = r.choice((f"({{}} {sign} {number})", f"({number} {sign} {{}})", f"po.{extreme}({{}}, {number})"))
            return self.cast(Node(text, (a,), a.dtype, a.bound), dtype)
        b = self.value(scope, r.choice(numeric), depth)
        both = promote(from_name(a.dtype), from_name(b.dtype)).name
        template = r.choice(("({} + {})", "({} - {})", "({} * {})", "po.maximum({}, {})", "po.minimum({}, {})"))
        return self.cast(Node(template, (a, b), both, greatest(both) if both not in FLOATS else LIMITS[both]), dtype)

    def function(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        """A function of floats, or what they say of themselves."""
        floats = [name for name in self.dtypes if name in FLOATS]
        if not floats:
            return self.unary(scope, dtype, depth)
        a = self.value(scope, self.random.choice(floats), depth)
        name = self.random.choice(self.functions)
        if name == "pow":
            b = self.value(scope, a.dtype, depth)
            return self.cast(Node("({} ** {})", (a, b), a.dtype, LIMITS[a.dtype]), dtype)
        kept = "bool_" if name.startswith("is") else a.dtype
        return self.cast(Node(f"po.{name}({{}})", (a,), kept, LIMITS.get(kept, 1)), dtype)

    # --- conditions --------------------------------------------------------------------------------------------

    def truth(self, scope: tuple[Axis, ...], depth: int) -> Node:
        """A boolean that depends on data."""
        readable = [t for t in self.known if t.dtype == "bool_"]
        if readable and self.chance(0.5):
            return self.read(self.random.choice(readable), scope)
        dtype = self.random.choice([d for d in self.dtypes if d != "bool_"] or ["i32"])
        other = self.random.choice(self.dtypes) if self.rough and self.chance(0.4) else dtype
        a, b = self.value(scope, dtype, min(depth, 1)), self.leaf(scope, other if other != "bool_" else dtype)
        return Node(f"({{}} {self.random.choice(('<', '<=', '>', '>=', '==', '!='))} {{}})", (a, b), "bool_", 1)

    def condition(self, scope: tuple[Axis, ...]) -> Node:
        """An affine or quasi-affine condition on the indices in scope."""
        r = self.random
        a, size = r.choice(scope)
        b = r.choice(scope)[0]
        shift = r.randint(-1, 3)
        texts = [
            f"({a} < {b} + {shift})", f"({a} >= {shift})", f"({a} + {b} < {size})", f"({a} == {shift})",
            f"({a} != {shift})", f"({a} % 2 == 0)", f"({a} // 2 >= {shift})", f"({a} < {size} - 1)",
            f"(({a} + {b}) % 3 == 1)", f"({a} == {size} - 1)", f"(2*{a} - {b} < {size})",
            f"(({a} // {r.randint(2, 4)} + {r.randint(1, 2)}*{b}) % {r.randint(2, 5)} == {r.randint(0, 1)})",
            f"((2*{a} - {b} // {r.randint(2, 4)} + {shift}) % {r.randint(3, 4)} <= {r.randint(0, 1)})",
        ]  # fmt: skip
        node = Node(r.choice(texts))
        if self.chance(0.25):
            other = Node(r.choice(texts))
            node = Node(f"({{}} {r.choice('&|')} {{}})", (node, other))
        return Node("(~{})", (node,)) if self.chance(0.1) else node

    # --- reads -------------------------------------------------------------------------------------------------

    def read(self, tensor: Known, scope: tuple[Axis, ...]) -> Node:
        """A read that stays in bounds by one of the language's means."""
        if not tensor.dims:
            return Node(f"{tensor.name}[()]", dtype=tensor.dtype, bound=tensor.bound)
        subscripts, inside = zip(*(self.subscript(dim, scope) for dim in tensor.dims))
        place = ", ".join(subscripts)
        if all(inside):
            return Node(f"{tensor.name}[{place}]", dtype=tensor.dtype, bound=tensor.bound)
        match self.random.randrange(4):
            case 0:
                fill = self.random.randint(0, 1 if tensor.dtype == "bool_" else 3)
                filled = f"{tensor.name}.pad({fill})[{place}]"
                return Node(filled, dtype=tensor.dtype, bound=max(tensor.bound, fill))
            case 1:
                return Node(f"{tensor.name}.clamp()[{place}]", dtype=tensor.dtype, bound=tensor.bound)
            case 2:
                return Node(f"{tensor.name}.wrap()[{place}]", dtype=tensor.dtype, bound=tensor.bound)
            case _:
                return self.guarded_read(tensor, subscripts, inside)

    def guarded_read(self, tensor: Known, subscripts: tuple[str, ...], inside: tuple[bool, ...]) -> Node:
        outside = [n for n, is_inside in enumerate(inside) if not is_inside]
        guard = " & ".join(f"({subscripts[n]} >= 0) & ({subscripts[n]} < {tensor.dims[n]})" for n in outside)
        read = Node(f"{tensor.name}[{', '.join(subscripts)}]", dtype=tensor.dtype, bound=tensor.bound)
        return Node(
            "po.where({}, {}, {})",
            (Node(f"({guard})"), read, literal(1, tensor.dtype)),
            tensor.dtype,
            max(1, tensor.bound),
        )

    def subscript(self, dim: str, scope: tuple[Axis, ...]) -> tuple[str, bool]:
        """A subscript for a dimension, and whether it is in bounds by itself."""
        r, extent = self.random, self.extent(dim)
        gathers = [t for t in self.known if t.subscripts == dim and all(self.matching(d, scope) for d in t.dims)]
        if gathers and self.chance(0.12):
            table = r.choice(gathers)
            chosen = f"{table.name}[{', '.join(r.choice(self.matching(d, scope)) for d in table.dims)}]"
            return self.hashed_place(chosen, dim, scope), True
        same = self.matching(dim, scope)
        if same and self.chance(0.6):
            return r.choice(same), True
        if extent > 0 and (not scope or self.chance(0.15)):
            return r.choice(("0", f"{dim} - 1")), True
        if not scope:
            return "0", False
        axis, shift = r.choice(same) if same and self.chance(0.7) else r.choice(scope)[0], r.randint(-2, 2)
        other = r.choice(scope)[0]
        if axis in same and self.chance(0.3):
            return r.choice((f"{dim} - 1 - {axis}", f"{axis} // 2", f"({axis} + 1) // 2" if extent > 1 else axis)), True
        texts = (
            f"{axis} + {shift}", f"{axis} + {shift}", f"{axis} - {other}", f"{axis} + {other}", f"2*{axis} + {shift}",
            f"{axis} % 3", f"{axis} // 3 + {other} % 2", f"({axis} + {other}) // 2", f"{other} - 2*{axis} + {shift}",
        )  # fmt: skip
        return r.choice(texts), False

    def hashed_place(self, chosen: str, dim: str, scope: tuple[Axis, ...]) -> str:
        """A position of a dimension that a table holds, now and then some hash of indices further on."""
        if not scope or not self.extent(dim) or not self.chance(0.2):
            return chosen
        return f"({chosen} + {self.hashed(scope)}) % {dim}"

    @staticmethod
    def matching(dim: str, scope: tuple[Axis, ...]) -> list[str]:
        return [name for name, size in scope if size == dim]

    # --- reductions --------------------------------------------------------------------------------------------

    def reduction(self, scope: tuple[Axis, ...], dtype: str, depth: int) -> Node:
        """A reduction over an index that is not in scope."""
        axis = self.new_axis(scope)
        if axis is None:
            return self.leaf(scope, dtype)
        if scope and self.chance(0.1):
            return self.prefix(scope, axis, dtype, depth)
        inner_scope = (*scope, axis)
        where = self.condition(inner_scope) if self.chance(0.3) else None
        match self.random.randrange(8):
            case 0 | 1 | 2:
                second = self.new_axis(inner_scope) if self.chance(0.15) else None
                return self.total((*inner_scope, second) if second else inner_scope, dtype, depth, where, len(scope))
            case 3:
                return self.product(inner_scope, dtype, depth, where)
            case 4 | 5:
                return self.extreme(inner_scope, dtype, depth, where)
            case 6:
                return self.test(inner_scope, dtype, depth, where)
            case _:
                if self.extent(axis[1]) == 0:
                    return self.leaf(scope, dtype)
                inner = self.value(inner_scope, self.random.choice(self.dtypes), depth)
                kind = self.random.choice(("argmax", "argmin"))
                return self.cast(_reduced(f"po.{kind}", inner, axis[0], None, "", "i64", self.extent(axis[1])), dtype)

    def prefix(self, scope: tuple[Axis, ...], axis: Axis, dtype: str, depth: int) -> Node:
        """A reduction of terms that do not know one of the indices in scope, up to it, from it on, or around it."""
        step, size = self.random.choice(scope)
        shift = self.random.randint(-1, 3)
        ends = (f"{step} + {shift}", f"{step} - {shift}", f"{size} - {step} - {shift}")
        where = Node(f"({axis[0]} {self.random.choice(('<', '<=', '>', '>='))} {self.random.choice(ends)})")
        if self.chance(0.2):
            where = Node(f"({{}} & ({axis[0]} > {step} - {self.random.randint(1, 9)}))", (where,))
        inner_scope = (*(other for other in scope if other[0] != step), axis)
        draw = self.random.choice((self.total, self.total, self.extreme, self.extreme, self.product, self.test))
        return draw(inner_scope, dtype, depth, where)

    def new_axis(self, scope: tuple[Axis, ...]) -> Axis | None:
        used = {name for name, _ in scope}
        free = [
            (name, size) for size in ("M", "N", "K") if size in self.sizes for name in INDICES[size] if name not in used
        ]
        return self.random.choice(free) if free else None

    def total(
        self, scope: tuple[Axis, ...], dtype: str, depth: int, where: Node | None, outer: int | None = None
    ) -> Node:
        """A sum over the last index, or over all after the `outer` first ones."""
        summed = scope[-1 if outer is None else outer :]
        axis = summed[0][0] if len(summed) == 1 else f"({', '.join(name for name, _ in summed)})"
        inner = self.value(scope, dtype, depth)
        points = prod(max(1, self.extent(size)) for _, size in summed)
        if dtype in FLOATS and inner.bound * points > LIMITS[dtype]:
            inner = self.small(inner)
        kept = _ACCUMULATORS.get(dtype, dtype)
        return self.cast(_reduced("po.sum", inner, axis, where, "", kept, inner.bound * points), dtype)

    def test(self, scope: tuple[Axis, ...], dtype: str, depth: int, where: Node | None) -> Node:
        kind = self.random.choice(("any", "all"))
        return self.cast(_reduced(f"po.{kind}", self.truth(scope, depth), scope[-1][0], where, "", "bool_", 1), dtype)

    def product(self, scope: tuple[Axis, ...], dtype: str, depth: int, where: Node | None) -> Node:
        inner = self.value(scope, dtype, depth)
        if dtype in FLOATS:
            inner = clipped(inner, -1, 1)
        kept = _ACCUMULATORS.get(dtype, dtype)
        bound = inner.bound if dtype in FLOATS else greatest(kept)
        return self.cast(_reduced("po.prod", inner, scope[-1][0], where, "", kept, bound), dtype)

    def extreme(self, scope: tuple[Axis, ...], dtype: str, depth: int, where: Node | None) -> Node:
        axis, size = scope[-1]
        inner = self.value(scope, dtype, depth)
        start = self.random.randint(0, 3)
        needed = where is not None or self.extent(size) == 0 or self.chance(0.3)
        if self.chance(0.2):
            combine = "lambda a, b: po.maximum(a, b)" if dtype in FLOATS else "lambda a, b: a ^ b"
            bound = max(inner.bound, start) if dtype in FLOATS else greatest(dtype)
            return Node(f"po.reduce({combine}, {{}}, {axis}, init={start})", (inner,), dtype, bound)
        kind = self.random.choice(("po.max", "po.min"))
        return _reduced(kind, inner, axis, where, f", init={start}" if needed else "", dtype, max(inner.bound, start))


def literal(value: int, dtype: str) -> Node:
    """A number of a given dtype."""
    return Node(f"po.cast({value}, po.{dtype})", dtype=dtype, bound=abs(value))


def clipped(node: Node, low: int = -CLIP, high: int = CLIP) -> Node:
    return Node(f"po.clip({{}}, {low}, {high})", (node,), node.dtype, max(-low, high), fixed=True)


def greatest(dtype: str) -> float:
    """The greatest absolute value of an integer dtype."""
    return 1.0 if dtype == "bool_" else float(2 ** int(dtype[1:]))


def _reduced(function: str, inner: Node, axis: str, where: Node | None, more: str, dtype: str, bound: float) -> Node:
    if where is None:
        return Node(f"{function}({{}}, {axis}{more})", (inner,), dtype, bound)
    return Node(f"{function}({{}}, {axis}, where={{}}{more})", (inner, where), dtype, bound)
