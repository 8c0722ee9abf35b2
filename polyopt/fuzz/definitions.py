"""Draws definitions of tensors: pointwise, in pieces, accumulated, scattered, recurrent, over whole tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from math import prod

from polyopt.classes import dataclass
from polyopt.fuzz.case import INDICES, Definition, Equation, Node
from polyopt.fuzz.expressions import FLOATS, LIMITS, Axis, Known, Writer, clipped, greatest

SHAPES = ((), ("M",), ("N",), ("K",), ("M", "N"), ("N", "M"), ("M", "M"), ("M", "N"), ("N", "K"), ("M", "N", "K"))


@dataclass(slots=True)
class Author:
    """Draws one definition after another.

    is_large:    the sizes are large, so that only definitions with little work per element are drawn
    definitions: those so far, in order
    """

    writer: Writer
    depth: int
    is_large: bool = False
    definitions: list[Definition] = field(default_factory=list)

    def define(self) -> None:
        """Add a definition, or a few that belong together."""
        draw = self.writer.random.choice(self.kinds())
        known = [s for s in SHAPES if all(d in self.writer.sizes for d in s)]
        dims = self.writer.random.choice([s for s in known if len(s) < 3 or not self.is_large])
        draw(self.fresh(), dims, self.writer.random.choice(self.writer.dtypes))

    def kinds(self) -> list[Callable[[str, tuple[str, ...], str], None]]:
        if self.is_large:
            return [
                self.window, self.window, self.contraction, self.recurrence, self.steps, self.whole, self.grid,
                self.chain, self.totals,
            ]  # fmt: skip
        return [
            self.pointwise, self.pointwise, self.pointwise, self.guarded, self.accumulated, self.accumulated,
            self.accumulated, self.scattered, self.recurrence, self.recurrence, self.grid, self.triangular,
            self.steps, self.mutual, self.interleaved, self.pieces, self.contraction, self.whole, self.window,
            self.chain, self.totals, self.turned, self.spread,
        ]  # fmt: skip

    def fresh(self) -> str:
        return f"t{len(self.definitions)}"

    def add(self, name: str, dims: tuple[str, ...], dtype: str, bound: float, *equations: Equation) -> None:
        """Record a definition with equations, readable by those after it."""
        shaped = self.writer.chance(0.7) or not dims or any(e.operator != "=" for e in equations)
        typed = self.writer.chance(0.8) or any(e.operator != "=" for e in equations)
        self.record(Definition(name, dims, dtype, equations, typed, shaped), bound)

    def record(self, definition: Definition, bound: float) -> None:
        self.definitions.append(definition)
        self.writer.known.append(Known(definition.name, definition.dims, definition.dtype, bound))

    def scope(self, dims: tuple[str, ...]) -> tuple[Axis, ...]:
        taken: dict[str, int] = {}
        axes = []
        for dim in dims:
            axes.append((INDICES[dim][taken.get(dim, 0)], dim))
            taken[dim] = taken.get(dim, 0) + 1
        return tuple(axes)

    def value(self, scope: tuple[Axis, ...], dtype: str) -> Node:
        return self.writer.value(scope, dtype, self.depth)

    def tame(self, node: Node) -> Node:
        return self.writer.small(node)

    # --- each element from other tensors ---------------------------------------------------------------------------

    def pointwise(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        scope = self.scope(dims)
        value = self.value(scope, dtype)
        self.add(name, dims, dtype, value.bound, Equation(place(scope), value))

    def guarded(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Two cases, each under a condition on the indices."""
        scope = self.scope(dims or ("M",))
        condition = self.writer.condition(scope)
        a, b = self.value(scope, dtype), self.value(scope, dtype)
        equations = (
            Equation(place(scope), a, guard=condition),
            Equation(place(scope), b, guard=Node("(~{})", (condition,))),
        )
        self.add(name, dims or ("M",), dtype, max(a.bound, b.bound), *equations)

    def window(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Each element from a few neighbors of one in another matrix, the latest as a rule."""
        w = self.writer
        sources = [t for t in w.known if len(t.dims) == 2 and t.dtype == dtype]
        if not sources or dtype == "bool_":
            return self.pointwise(name, dims, dtype)
        source = sources[-1] if w.chance(0.8) else w.random.choice(sources)
        scope = self.scope(source.dims)
        (i, _), (j, _) = scope
        boundary = w.random.choice((".pad(1)", ".clamp()", ".wrap()"))
        offsets = w.random.sample([(a, b) for a in (-1, 0, 1) for b in (-2, -1, 0, 1, 2)], w.random.randint(1, 4))
        node = self.tame(Node(f"{source.name}[{i}, {j}]", dtype=dtype, bound=source.bound))
        for a, b in offsets:
            read = Node(f"{source.name}{boundary}[{i} + {a}, {j} + {b}]", dtype=dtype, bound=max(1, source.bound))
            part = self.tame(read)
            sign = w.random.choice("+-")
            node = Node(f"({{}} {sign} {{}})", (node, part), dtype, node.bound + part.bound)
        return self.add(name, source.dims, dtype, node.bound, Equation(place(scope), node))

    def interleaved(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Even and odd elements from different equations."""
        scope = self.scope(("M",))
        a, b = self.value(scope, dtype), self.value(scope, dtype)
        i = scope[0][0]
        self.add(name, ("2*M",), dtype, max(a.bound, b.bound), Equation(f"[2*{i}]", a), Equation(f"[2*{i} + 1]", b))

    def pieces(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """The first row and the others, in equations of their own."""
        dims = dims or ("N",)
        scope = self.scope(dims)
        a, b = self.value(scope[1:], dtype), self.value(scope, dtype)
        first = "[" + ", ".join(("0", *(axis for axis, _ in scope[1:]))) + "]"
        rest = Equation(place(scope), b, guard=Node(f"({scope[0][0]} > 0)"))
        self.add(name, dims, dtype, max(a.bound, b.bound), Equation(first, a), rest)

    # --- accumulations -----------------------------------------------------------------------------------------------

    def accumulated(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Sums or products over other indices, maybe onto a plain definition."""
        w = self.writer
        scope = self.scope(dims)
        is_product = dtype not in (*FLOATS, "bool_") and w.chance(0.15)
        dtype = "i32" if dtype == "bool_" else dtype
        equations, bound = [], 0.0
        if w.chance(0.4):
            equations.append(Equation(place(scope), self.tame(self.value(scope, dtype))))
            bound += equations[0].value.bound
        for _ in range(w.random.randint(1, 2)):
            axis = w.new_axis(scope)
            inner = (*scope, axis) if axis and w.chance(0.85) else scope
            second = w.new_axis(inner)
            inner = (*inner, second) if second and w.chance(0.2) else inner
            value = self.tame(self.value(inner, dtype))
            points = 1
            for _, size in inner[len(scope) :]:
                points *= max(1, w.extent(size))
            bound += value.bound * points
            guard = w.condition(inner) if inner and w.chance(0.25) else None
            equations.append(Equation(place(scope), value, "*=" if is_product else "+=", guard))
        if dtype in FLOATS and bound > LIMITS[dtype]:
            equations, bound = [self.shrunk(e) for e in equations], LIMITS[dtype]
        self.add(name, dims, dtype, bound if dtype in FLOATS else greatest(dtype), *equations)

    @staticmethod
    def shrunk(equation: Equation) -> Equation:
        return Equation(equation.left, clipped(equation.value, -1, 1), equation.operator, equation.guard)

    def totals(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """One sum over several tensors, of some the same sum through a boundary: nests that are alike."""
        w = self.writer
        dtype = "i32" if dtype == "bool_" else dtype
        sources = [t for t in w.known if t.dims and t.dtype == dtype]
        if not sources:
            return self.accumulated(name, dims, dtype)
        scope = self.scope(dims[:1] if w.chance(0.5) else ())
        boundary, offset = w.random.choice((".pad(1)", ".clamp()", ".wrap()")), w.random.randint(-2, 2)
        first = w.random.choice(sources)
        alike = [t for t in sources if t.dims == first.dims]
        axes = self.scope(first.dims)
        inner = tuple(dict.fromkeys((*scope, *axes)))
        moved = ", ".join(f"{axis} + {offset}" for axis, _ in axes)
        points = prod(max(1, w.extent(size)) for axis, size in inner if (axis, size) not in scope)
        equations, bound = [], 0.0
        for _ in range(w.random.randint(2, 4)):
            source = w.random.choice(alike)
            read = Node(f"{source.name}{boundary}[{moved}]", dtype=dtype, bound=max(1, source.bound))
            value = self.tame(read if w.chance(0.7) else self.value(inner, dtype))
            bound += value.bound * points
            equations.append(Equation(place(scope), value, "+="))
        if dtype in FLOATS and bound > LIMITS[dtype]:
            equations, bound = [self.shrunk(e) for e in equations], LIMITS[dtype]
        target = tuple(size for _, size in scope)
        return self.add(name, target, dtype, bound if dtype in FLOATS else greatest(dtype), *equations)

    def turned(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Each element from a value further from the other end, with sums onto a diagonal now and then."""
        w = self.writer
        scope = self.scope(dims or ("N",))
        value = self.tame(self.value(scope, dtype))
        left = ", ".join(f"{size} - 1 - {axis}" if w.chance(0.6) else axis for axis, size in scope)
        equations, bound = [Equation(f"[{left}]", value)], value.bound
        if dims == ("M", "M") and dtype != "bool_":
            added = self.tame(self.value(scope[:1], dtype))
            equations.append(Equation(w.random.choice(("[i, i]", "[i, M - 1 - i]", "[M - 1 - i, i]")), added, "+="))
            bound += added.bound
        self.add(name, dims or ("N",), dtype, bound, *equations)

    def spread(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Sums that each point adds to an element further on, as a transposed convolution or a polynomial's product."""
        w = self.writer
        dtype = "i32" if dtype == "bool_" else dtype
        dim, inner, lefts = w.random.choice(
            (
                ("2*M + K - 2", ("M", "K"), ("2*i + k", "2*i + K - 1 - k", "2*M - 2 - 2*i + k")),
                ("M + N - 1", ("M", "N"), ("i + j", "M - 1 - i + j", "i + N - 1 - j")),
            )
        )
        others = self.scope(("T",) if w.chance(0.3) else ())
        target, scope = self.scope((dim,)), (*self.scope(inner), *others)
        equations, bound = [], 0.0
        if w.chance(0.4):
            whole = (*target, *others)
            equations.append(Equation(place(whole), self.tame(self.value(whole, dtype))))
            bound = equations[0].value.bound
        for moved in w.random.choices(lefts, k=w.random.choice((1, 1, 1, 2))):
            summed = w.new_axis(scope) if w.chance(0.2) else None
            points = (*scope, summed) if summed else scope
            value = self.tame(self.value(points, dtype))
            left = ", ".join((moved, *(axis for axis, _ in others)))
            guard = w.condition(points) if w.chance(0.2) else None
            bound += value.bound * prod(max(1, w.extent(axis[1])) for axis in points)
            equations.append(Equation(f"[{left}]", value, "+=", guard))
        if dtype in FLOATS and bound > LIMITS[dtype]:
            equations, bound = [self.shrunk(e) for e in equations], LIMITS[dtype]
        dims = (dim, *(size for _, size in others))
        shaped = len(equations) > 1 or w.chance(0.5)
        bound = bound if dtype in FLOATS else greatest(dtype)
        self.record(Definition(name, dims, dtype, tuple(equations), True, shaped), bound)

    def scattered(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Sums into elements that data choose."""
        w = self.writer
        tables = [t for t in w.known if t.subscripts is not None]
        if not tables or dtype in ("bool_", "f16", "bf16"):
            return self.accumulated(name, dims, dtype)
        table = w.random.choice(tables)
        assert table.subscripts is not None, "chosen above"
        scope = self.scope(table.dims)
        axis = w.new_axis(scope) if w.chance(0.5) else None
        inner = (*scope, axis) if axis else scope
        value = self.tame(self.value(inner, dtype))
        target: tuple[str, ...] = (table.subscripts,)
        left = w.hashed_place(f"{table.name}{place(scope)}", table.subscripts, inner)
        if axis and w.chance(0.7):
            target, left = (*target, axis[1]), f"{left}, {axis[0]}"
        guard = w.condition(inner) if inner and w.chance(0.2) else None
        points = 1
        for _, size in inner:
            points *= max(1, w.extent(size))
        return self.add(name, target, dtype, value.bound * points, Equation(f"[{left}]", value, "+=", guard))

    def chain(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Sums of powers of two relative to a maximum, most of them as in a softmax: what may run in one pass with it.

        Scores are whole numbers from -3 to 3, so that sums of 64 times their powers are whole and small.
        """
        w = self.writer
        if w.rough:
            return self.pointwise(name, ("M", "N"), dtype)
        dtype = w.random.choice(("f32", "f64"))
        scope = self.scope(("M", "N"))
        i, j = (axis for axis, _size in scope)
        guard = w.random.choice(("", "", "", f"{j} <= {i}", f"({j} <= {i}) & ({j} >= {i} - 2)", f"{j} >= 1"))
        where = f", where={guard}" if guard else ""
        names = [f"{name}s", f"{name}t", f"{name}m", name]
        low, high = -3, 3
        for own in names[:2]:
            score = Equation(place(scope), clipped(self.value(scope, dtype), low, high))
            self.record(Definition(own, ("M", "N"), dtype, (score,), True, True), high)
        scores, others = (f"{own}[{i}, {j}]" for own in names[:2])
        of = scores
        if w.chance(0.2):
            of = f"po.where({others} > 0, {scores}, {low})"
        start = f", init={low}" if guard == f"{j} >= 1" or w.chance(0.2) else ""
        largest = Node(f"po.max({of}, {j}{where}{start})", (), dtype, high)
        self.record(Definition(names[2], ("M",), dtype, (Equation(f"[{i}]", largest),), True, True), high)
        exponent = f"{others if w.chance(0.15) else scores} - {names[2]}[{i}]"
        factors = [f"po.exp2({exponent})"]
        if w.chance(0.6):
            factors.append(w.random.choice((others, f"{names[2]}[{i}]", "0.5", "2.0")))
        if w.chance(0.2):
            where = ""
        summand = " * ".join(factors if w.chance(0.8) else factors[::-1])
        total = Node(f"(64.0 * po.sum({summand}, {j}{where}))", (), dtype, 64 * 64 * 4 * w.extent("N"))
        return self.add(name, ("M",), dtype, total.bound, Equation(f"[{i}]", total))

    def contraction(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """A product of matrices, where there are some to multiply."""
        w = self.writer
        matrices = [t for t in w.known if len(t.dims) == 2 and t.dtype == dtype]
        pairs = [(a, b) for a in matrices for b in matrices if a.dims[1] == b.dims[0]]
        if not pairs or dtype == "bool_":
            return self.accumulated(name, dims, dtype)
        a, b = w.random.choice(pairs)
        names = [INDICES[a.dims[0]][0], INDICES[b.dims[1]][1], INDICES[a.dims[1]][int(a.dims[0] == a.dims[1])]]
        if names[1] == names[2]:
            names[1] = INDICES[b.dims[1]][0]
        if len(set(names)) < 3:
            return self.accumulated(name, dims, dtype)
        r, c, k = names
        left = self.tame(Node(f"{a.name}[{r}, {k}]", dtype=dtype, bound=a.bound))
        right = self.tame(Node(f"{b.name}[{k}, {c}]", dtype=dtype, bound=b.bound))
        bound = left.bound * right.bound * max(1, w.extent(a.dims[1]))
        if dtype in FLOATS and bound > LIMITS[dtype]:
            left, right, bound = clipped(left, -1, 1), clipped(right, -1, 1), w.extent(a.dims[1])
        value = Node("({} * {})", (left, right), dtype, bound)
        return self.add(name, (a.dims[0], b.dims[1]), dtype, bound, Equation(f"[{r}, {c}]", value, "+="))

    # --- recurrences -------------------------------------------------------------------------------------------------

    def step(self, scope: tuple[Axis, ...], dtype: str, earlier: list[str]) -> Node:
        """A new element from earlier ones of the same system and from other tensors."""
        w = self.writer
        node = w.value(scope, dtype, 1)
        for read in earlier:
            part = Node(read, dtype=dtype, bound=8 if dtype in FLOATS else greatest(dtype))
            signs = ("&", "|") if dtype == "bool_" else ("+", "+", "-")
            if w.chance(0.25):
                node = Node("po.maximum({}, {})", (node, part), dtype, max(node.bound, part.bound))
            else:
                node = Node(f"({{}} {w.random.choice(signs)} {{}})", (node, part), dtype, node.bound + part.bound)
        return clipped(node) if dtype in FLOATS else node

    def recurrent(self, name: str, dims: tuple[str, ...], dtype: str, *equations: Equation) -> None:
        self.add(name, dims, dtype, 8 if dtype in FLOATS else greatest(dtype), *equations)

    def recurrence(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """Along the first axis, forwards or backwards."""
        w = self.writer
        dims = dims or ("M",)
        scope = self.scope(dims)
        i, rest = scope[0][0], "".join(f", {axis}" for axis, _ in scope[1:])
        reach = w.random.randint(1, 3)
        base = self.tame(self.value(scope, dtype))
        if w.chance(0.5):
            condition, reads = f"({i} < {reach})", [f"{name}[{i} - {reach}{rest}]"]
            if w.chance(0.5):
                reads.append(f"{name}[{i} - {w.random.randint(1, reach)}{rest}]")
        else:
            condition, reads = f"({i} >= {dims[0]} - {reach})", [f"{name}[{i} + {reach}{rest}]"]
        step = self.step(scope, dtype, reads)
        if w.chance(0.5):
            value = Node("po.where({}, {}, {})", (Node(condition), base, step), dtype)
            return self.recurrent(name, dims, dtype, Equation(place(scope), value))
        equations = (
            Equation(place(scope), base, guard=Node(condition)),
            Equation(place(scope), step, guard=Node(f"(~{condition})")),
        )
        return self.recurrent(name, dims, dtype, *equations)

    def grid(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Two-dimensional dynamic programming."""
        w = self.writer
        i, j = "i", "j"
        offsets = w.random.sample(((1, 0), (0, 1), (1, 1), (1, -1), (2, 0), (2, 1), (1, 2)), w.random.randint(1, 3))
        inside = f"({i} >= 2) & ({j} >= 2) & ({j} < N - 1)"
        scope = self.scope(("M", "N"))
        reads = [f"{name}[{i} - {a}, {j} - {b}]" for a, b in offsets]
        base = self.tame(self.value(scope, dtype))
        value = Node("po.where({}, {}, {})", (Node(inside), self.step(scope, dtype, reads), base), dtype)
        self.recurrent(name, ("M", "N"), dtype, Equation(place(scope), value))

    def triangular(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Each element from a sum over all before it, as in a triangular solve."""
        w = self.writer
        if dtype not in ("i32", "i64", "u32", "u64", "f32", "f64"):
            dtype = "i64"
        dims = w.random.choice((("M",), ("M", "N")))
        scope = self.scope(dims)
        rest = "".join(f", {axis}" for axis, _ in scope[1:])
        start = self.tame(self.value(scope, dtype))
        factor = self.tame(w.leaf((*scope, ("ii", "M")), dtype))
        earlier = Node(f"{name}[ii{rest}]", dtype=dtype, bound=8 if dtype in FLOATS else greatest(dtype))
        inner = Node("({} * {})", (factor, earlier), dtype)
        order = w.random.choice(("ii < i", "ii + 1 < i", "ii > i"))
        function = w.random.choice(
            ("po.sum({}, ii, where=%s)", "po.sum({}, ii, where=%s)", "po.max({}, ii, where=%s, init=1)")
        )
        node = Node(f"({{}} + {function % order})", (start, inner), dtype)
        self.recurrent(name, dims, dtype, Equation(place(scope), clipped(node) if dtype in FLOATS else node))

    def steps(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Time steps over an axis, of which the last row is kept."""
        w = self.writer
        scope = self.scope(("N",))
        j = scope[0][0]
        edge = f"({j} > 0) & ({j} < N - 1)"
        reads = w.random.sample(
            (f"{name}[t, {j} - 1]", f"{name}[t, {j}]", f"{name}[t, {j} + 1]", f"{name}[t + 1, {j} - 1]"),
            w.random.randint(1, 3),
        )
        start, inner = self.tame(self.value(scope, dtype)), self.step(scope, dtype, reads)
        outer = self.step(scope, dtype, [f"{name}[t, {j}]"])
        value = Node("po.where({}, {}, {})", (Node(edge), inner, outer), dtype)
        equations = (Equation(f"[0, {j}]", start), Equation(f"[t + 1, {j}]", value))
        self.definitions.append(Definition(name, ("T + 1", "N"), dtype, equations))
        last = Node(f"{name}[T, {j}]", dtype=dtype)
        self.recurrent(self.fresh(), ("N",), dtype, Equation(place(scope), last))

    def mutual(self, name: str, _: tuple[str, ...], dtype: str) -> None:
        """Two tensors defined from each other."""
        scope = self.scope(("M",))
        i = scope[0][0]
        other = f"t{len(self.definitions) + 1}"
        first = self.step(scope, dtype, [f"{name}[{i} - 1]", f"{other}[{i} - 1]"])
        second = self.step(scope, dtype, [f"{name}[{i}]"])
        base = self.tame(self.value(scope, dtype))
        value = Node("po.where({}, {}, {})", (Node(f"({i} == 0)"), base, first), dtype)
        system = (
            Definition(name, ("M",), dtype, (Equation(place(scope), value),)),
            Definition(other, ("M",), dtype, (Equation(place(scope), second),)),
        )
        for definition in system:
            self.record(definition, 8 if dtype in FLOATS else greatest(dtype))

    # --- whole tensors -----------------------------------------------------------------------------------------------

    def whole(self, name: str, dims: tuple[str, ...], dtype: str) -> None:
        """A tensor as one expression over whole tensors."""
        w = self.writer
        found = [t for t in w.known if t.subscripts is None and t.dims and t.dtype == dtype and dtype != "bool_"]
        if not found:
            return self.pointwise(name, dims, dtype)
        a = w.random.choice(found)
        same = w.random.choice([t for t in found if t.dims == a.dims])
        first, second = (self.tame(Node(t.name, dtype=dtype, bound=t.bound)) for t in (a, same))
        wide = dtype in ("i32", "i64", "u32", "u64", "f32", "f64")
        shape, node = w.random.choice(
            [
                (a.dims, Node("({} + {})", (first, second), dtype, first.bound + second.bound)),
                (a.dims, Node("po.maximum({}, {})", (first, second), dtype, max(first.bound, second.bound))),
                (a.dims[::-1], Node(f"{a.name}.T", dtype=dtype, bound=a.bound)),
                (a.dims, Node(f"{a.name}[::-1]", dtype=dtype, bound=a.bound)),
                (a.dims[1:], Node(f"{a.name}[0]", dtype=dtype, bound=a.bound)),
                *(
                    [(a.dims[1:], Node("po.sum({}, axis=0)", (first,), dtype, first.bound * w.extent(a.dims[0])))]
                    * wide
                ),
                (a.dims[:-1], Node(f"po.max({a.name}, axis=-1)", dtype=dtype, bound=a.bound)),
            ]
        )
        if not shape and node.template.startswith("po."):
            return self.pointwise(name, dims, dtype)
        return self.record(Definition(name, shape, dtype, (), whole=self.tame(node)), self.tame(node).bound)


def place(scope: tuple[Axis, ...]) -> str:
    """The subscript of a left side."""
    return f"[{', '.join(axis for axis, _ in scope) or '()'}]"
