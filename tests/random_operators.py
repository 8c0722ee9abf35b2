"""Random small operators, written through the public surface: every value a 64-bit integer, so that results are exact.

A program is a handful of tensors over one or two axes, each defined from earlier ones (and, for a recurrence, from
itself) by a definition that is drawn: pointwise, window, reduction, triangle, recurrence, gather, scatter.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import polyopt as po
from polyopt import i64

M, N = po.sizes("M N")
i, j = po.index("i", extent=M), po.index("j", extent=N)

Tensor = Any
Value = Any


@dataclass
class Case:
    """An operator with arguments for it."""

    op: po.Op
    arguments: tuple[np.ndarray[Any, Any], ...]


@dataclass
class Writer:
    """Draws the definitions of one operator while it is traced.

    matrices, vectors: tensors of shape (m, n) and (n,) that later definitions may read
    """

    random: Random
    m: int
    n: int
    length: int
    matrices: list[Tensor] = field(default_factory=list)
    vectors: list[Tensor] = field(default_factory=list)

    def write(self, x: Tensor, y: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        self.matrices, self.vectors = [x], [y]
        results = []
        for number in range(self.length):
            define = self.random.choice(self.definitions())
            results.append(define(f"t{number}", ids))
        kept = self.random.sample(range(len(results)), self.random.randint(1, min(2, len(results))))
        return tuple(results[number] for number in sorted({*kept, len(results) - 1}))

    def definitions(self) -> list[Callable[[str, Tensor], Tensor]]:
        return [
            self.pointwise, self.pointwise, self.window, self.row_reduction, self.column_reduction, self.product,
            self.triangle, self.column_recurrence, self.two_dimensional_recurrence, self.vector_recurrence,
            self.gather, self.scatter, self.outer, self.pieces, self.stepped,
        ]  # fmt: skip

    # --- values --------------------------------------------------------------------------------------------

    def combined(self, *values: Value) -> Value:
        total = values[0]
        for value in values[1:]:
            match self.random.randrange(5):
                case 0:
                    total = total * value
                case 1:
                    total = po.maximum(total, value)
                case 2:
                    total = total - value
                case _:
                    total = total + value
        return total

    def matrix(self, at_i: Any = i, at_j: Any = j) -> Value:
        """A read of a matrix around (i, j), which stays in bounds by one of the language's means."""
        r = self.random
        tensor = r.choice(self.matrices)
        a, b = r.randint(-2, 2), r.randint(-2, 2)
        match r.randrange(9):
            case 0:
                return tensor.pad(r.randint(0, 3))[at_i + a, at_j + b]
            case 1:
                return tensor.clamp()[at_i + a, at_j + b]
            case 2:
                return tensor.wrap()[at_i + a, at_j + b]
            case 3:
                inside = (at_i + a >= 0) & (at_i + a < M) & (at_j + b >= 0) & (at_j + b < N)
                return po.where(inside, tensor[at_i + a, at_j + b], r.randint(0, 3))
            case 4:
                return tensor[at_i // 2, at_j]
            case 5:
                return tensor.clamp()[at_j, at_i]
            case 6:
                return tensor.clamp()[M - 1 - at_i, 2 * at_j]
            case _:
                return tensor[at_i, at_j]

    def vector(self, at: Any = j) -> Value:
        r = self.random
        tensor = r.choice(self.vectors)
        a = r.randint(-2, 2)
        match r.randrange(5):
            case 0:
                return tensor.pad(r.randint(0, 3))[at + a]
            case 1:
                return tensor.wrap()[at + a]
            case 2:
                return tensor.clamp()[at // 2 + a]
            case _:
                return tensor[at]

    def any_matrix_value(self) -> Value:
        r = self.random
        parts = [self.matrix()]
        if r.random() < 0.6:
            parts.append(self.matrix())
        if r.random() < 0.4:
            parts.append(self.vector())
        if r.random() < 0.2:
            parts.append(po.cast(i + 2 * j, i64))
        return self.combined(*parts)

    def condition(self) -> Any:
        match self.random.randrange(4):
            case 0:
                return j < i
            case 1:
                return i + j < N
            case 2:
                return (i > 0) & (j < N - 1)
            case _:
                return i % 2 == 0

    # --- definitions ---------------------------------------------------------------------------------------

    def new_matrix(self, name: str) -> Tensor:
        return po.tensor(name, shape=(M, N), dtype=i64)

    def done_matrix(self, tensor: Tensor) -> Tensor:
        self.matrices.append(tensor)
        return tensor

    def done_vector(self, tensor: Tensor) -> Tensor:
        self.vectors.append(tensor)
        return tensor

    def pointwise(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        t[i, j] = self.any_matrix_value()
        return self.done_matrix(t)

    def window(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        source = self.random.choice(self.matrices).pad(0)
        di, dj = self.random.randint(0, 2), self.random.randint(0, 2)
        t[i, j] = source[i - di, j] + source[i, j + dj] * source[i + di, j - dj] + self.vector()
        return self.done_matrix(t)

    def row_reduction(self, name: str, ids: Tensor) -> Tensor:
        """Over the columns of each row, kept as a matrix or multiplied back in."""
        t = self.new_matrix(name)
        k = po.index("k", extent=N)
        value = self.matrix(i, k) + self.vector(k)
        match self.random.randrange(5):
            case 0:
                reduced = po.sum(value, k, where=k <= i)
            case 1:
                reduced = po.max(value, k)
            case 2:
                reduced = po.min(value, k, where=k > j, init=7)
            case 3:
                reduced = po.reduce(lambda a, b: a + b - 0, value, k, init=3)
            case _:
                reduced = po.sum(value, k)
        t[i, j] = reduced + self.matrix() if self.random.random() < 0.6 else reduced * 2
        return self.done_matrix(t)

    def column_reduction(self, name: str, ids: Tensor) -> Tensor:
        t = po.tensor(name, shape=(N,), dtype=i64)
        k = po.index("k", extent=M)
        if self.random.random() < 0.5:
            t[j] = self.vector()
        t[j] += self.matrix(k, j)
        if self.random.random() < 0.3:
            t[j] += self.matrix(k, j) * 2
        return self.done_vector(t)

    def product(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        k = po.index("k", extent=min(self.m, self.n))
        left, right = self.random.choice(self.matrices), self.random.choice(self.matrices)
        t[i, j] += left[i, k] * right[k, j]
        return self.done_matrix(t)

    def triangle(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        condition = self.condition()
        t[i, j] = po.when(condition, self.any_matrix_value())
        t[i, j] = po.when(~condition, self.any_matrix_value())
        return self.done_matrix(t)

    def column_recurrence(self, name: str, ids: Tensor) -> Tensor:
        """Along the rows, forwards or backwards, reading the row before it at several columns."""
        t = self.new_matrix(name)
        r = self.random
        before = t[i - 1, j] + t.clamp()[i - 1, j + r.randint(-1, 1)]
        if r.random() < 0.5:
            t[i, j] = po.where(i == 0, self.vector(), before - self.matrix())
        else:
            t[i, j] = po.where(i == M - 1, self.matrix(), t[i + 1, N - 1 - j] + self.vector())
        return self.done_matrix(t)

    def two_dimensional_recurrence(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        r = self.random
        a, b = r.choice([(1, 0), (0, 1), (1, 1), (1, -1), (2, -1)])
        c, d = r.choice([(1, 0), (0, 1), (1, 2), (1, -2), (0, 2)])
        inside = (i >= 2) & (j >= 2) & (j < N - 2)
        t[i, j] = po.where(inside, t[i - a, j - b] + t[i - c, j - d] - self.matrix(), self.any_matrix_value())
        return self.done_matrix(t)

    def vector_recurrence(self, name: str, ids: Tensor) -> Tensor:
        t = po.tensor(name, shape=(N,), dtype=i64)
        match self.random.randrange(3):
            case 0:
                t[j] = po.where(j == 0, self.vector(), t[j - 1] + self.vector())
            case 1:
                t[j] = po.where(j < 2, self.vector(), t[j - 2] - t[j - 1] + self.vector())
            case _:
                k = po.index("k", extent=N)
                t[j] = self.vector() + po.sum(t[k] * self.vector(k), k, where=k < j)
        return self.done_vector(t)

    def gather(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        t[i, j] = self.random.choice(self.matrices)[ids[j], j] + self.matrix()
        return self.done_matrix(t)

    def scatter(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        t[ids[j], j] += self.matrix()
        return self.done_matrix(t)

    def outer(self, name: str, ids: Tensor) -> Tensor:
        t = self.new_matrix(name)
        t[i, j] = self.vector() * po.where(i < N, self.random.choice(self.vectors).clamp()[i], 1)
        return self.done_matrix(t)

    def pieces(self, name: str, ids: Tensor) -> Tensor:
        """Border and interior in equations of their own."""
        t = self.new_matrix(name)
        k = po.index("k", 1, M)
        t[0, j] = self.vector()
        t[k, j] = self.matrix(k, j) + self.vector()
        return self.done_matrix(t)

    def stepped(self, name: str, ids: Tensor) -> Tensor:
        """Time steps over the columns, of which only the last is kept."""
        u = po.tensor(f"{name}_steps")
        steps, weight = self.random.randint(1, 4), self.random.randint(0, 2)
        t = po.index("t", extent=steps)
        u[0, j] = self.vector()
        between = u[t, j - 1] + weight * u[t, j + 1] - u[t, j]
        u[t + 1, j] = po.where((j > 0) & (j < N - 1), between, u[t, j] + self.vector())
        last = po.tensor(name, shape=(N,), dtype=i64)
        last[j] = u[steps, j]
        return self.done_vector(last)


def random_case(seed: int, extents: tuple[int, int] = (1, 7)) -> Case:
    """The operator of a seed, the same on every run. extents: the least and the greatest"""
    random = Random(seed)
    m, n, length = random.randint(*extents), random.randint(*extents), random.randint(1, 5)
    drawing = random.randrange(1 << 30)

    def program(x: i64[M, N], y: i64[N], ids: i64[N]):
        return Writer(Random(drawing), m, n, length).write(x, y, ids)

    program.__name__ = f"random_{seed}"
    numbers = np.random.default_rng(seed)
    arguments = (
        numbers.integers(-3, 4, (m, n)),
        numbers.integers(-3, 4, n),
        numbers.integers(0, m, n),
    )
    return Case(po.op(program), arguments)
