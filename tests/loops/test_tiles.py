"""Loops around lanes and registers, cut where the bounds of these move: the same instances, in the same order."""

from __future__ import annotations

from random import Random

from polyopt.dsl.affine import Affine, axis, constant
from polyopt.dsl.ir import Const, Op
from polyopt.dtypes import f32, i64
from polyopt.loops.instances import enumerate_instances
from polyopt.loops.ir import Buffer, Expr, For, LoopKind, LoopProgram, Stmt, Store, index_var, integer, walk
from polyopt.loops.scan import affine_expr
from polyopt.loops.split import split


def program(body: Stmt) -> LoopProgram:
    return LoopProgram("rows", (Buffer("y", f32, (), "argument"),), (), (), ("y",), body)


def nest(*loops: tuple[str, LoopKind, Expr, Expr]) -> LoopProgram:
    """Loops straight inside one another: name, kind and bounds."""
    names = [name for name, *_ in loops]
    body: Stmt = Store("S", tuple(map(index_var, names)), "y", (), Const(1.0, f32))
    for name, kind, lower, upper in reversed(loops):
        body = For(name, lower, upper, body, kind=kind)
    return program(body)


def greatest(*parts: Affine, name: str = "maximum") -> Expr:
    first, *others = map(affine_expr, parts)
    for other in others:
        first = Op(name, (first, other), i64)
    return first


def points(one: LoopProgram) -> list[tuple[int, ...]]:
    return [instance.point for instance in enumerate_instances(one)]


def window(steps: int, stride: int, *between: tuple[str, LoopKind, Expr, Expr]) -> LoopProgram:
    """Rows of an image of 7 that a window of some steps finds inside."""
    s = axis("s")
    first = (constant(1 + stride - 1) - s) // stride
    last = (constant(7) - s) // stride + 1
    rows = greatest(constant(0), first), greatest(constant(-(-7 // stride)), last, name="minimum")
    return nest(("s", "serial", integer(0), integer(steps)), *between, ("w", "unrolled", *rows))


def test_each_step_of_a_window_has_rows_of_its_own() -> None:
    columns: tuple[str, LoopKind, Expr, Expr] = ("c", "serial", integer(0), integer(5))
    for original in (window(3, 1), window(3, 2), window(5, 1), window(3, 1, columns)):
        cut = split(original)
        rows = [loop for loop in walk(cut.body) if isinstance(loop, For) and loop.kind == "unrolled"]
        assert len(rows) == len({step for step, *_ in points(original)})
        assert all(isinstance(loop.lower, Const) and isinstance(loop.upper, Const) for loop in rows)
        assert points(cut) == points(original)


def test_a_long_loop_is_not_written_step_by_step() -> None:
    cut = split(window(100, 1))
    assert len([loop for loop in walk(cut.body) if isinstance(loop, For) and loop.kind == "unrolled"]) <= 3


def test_whatever_the_bounds_the_order_of_instances_stays() -> None:
    random = Random(0)

    def bound(names: str, name: str) -> Expr:
        parts = []
        for _ in range(random.randint(1, 3)):
            part = constant(random.randint(0, 3) if name == "maximum" else random.randint(2, 7))
            for other in names:
                part = part + axis(other) * random.choice((0, 0, 1, -1, 2))
            parts.append(part // random.choice((1, 1, 2)))
        return greatest(*parts, name=name)

    changed = 0
    for _ in range(300):
        kinds: list[LoopKind] = [random.choice(("serial", "unrolled", "unrolled", "vector")) for _ in "bcd"]
        loops: list[tuple[str, LoopKind, Expr, Expr]] = [
            ("a", "serial", integer(random.randint(0, 2)), integer(random.randint(2, 10)))
        ]
        for number, kind in enumerate(kinds):
            around = "abc"[: number + 1]
            loops.append(("bcd"[number], kind, bound(around, "maximum"), bound(around, "minimum")))
        original = nest(*loops)
        cut = split(original)
        assert points(cut) == points(original), original
        changed += cut.body != original.body
    assert changed > 60
