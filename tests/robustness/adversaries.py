"""Definitions that are legal and cruel: deep, wide, of high rank, of large coefficients, of many cases."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

import polyopt as po
from polyopt import f64, i64

M, N = po.sizes("M N")
i, j = po.indices("i j")
X = np.arange(1, 13, dtype=np.int64)
Make = Callable[[int], tuple[po.Op, tuple[np.ndarray, ...]]]


@dataclass(frozen=True)
class Adversary:
    """A family of definitions with the sizes at which it is tried."""

    make: Make
    sizes: tuple[int, ...]


def deep_sum(depth: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def deep(x: i64[N]):
        y, value = po.tensor("y"), x[i]
        for n in range(depth):
            value = value * 3 + n
        y[i] = value
        return y

    return deep, (X,)


def deep_where(depth: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def nested(x: i64[N]):
        y, value = po.tensor("y"), x[i]
        for n in range(depth):
            value = po.where(i > n % 12, value + n, x[i])
        y[i] = value
        return y

    return nested, (X,)


def data_where(depth: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def chosen(x: i64[N]):
        y, value = po.tensor("y"), x[i]
        for n in range(depth):
            value = po.where(x[i] > n, value + n, x[i])
        y[i] = value
        return y

    return chosen, (X,)


def chain(length: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """Tensors of windows, one after the other."""

    @po.op
    def windows(x: i64[N]):
        value = x
        for n in range(length):
            following = po.tensor(f"t{n}", shape=(N,))
            k = po.index(f"k{n}", extent=N)
            following[k] = value.clamp()[k - 1] + value.clamp()[k + 1]
            value = following
        return value

    return windows, (X,)


def sums(length: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """Tensors that all need a sum of the one before."""

    @po.op
    def totals(x: i64[N]):
        value = x
        for n in range(length):
            following = po.tensor(f"t{n}", shape=(N,))
            k, m = po.index(f"k{n}", extent=N), po.index(f"m{n}", extent=N)
            following[k] = value[k] % 7 + po.sum(value[m] % 5, m)
            value = following
        return value

    return totals, (X,)


def wide(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """Many results that know nothing of each other."""

    @po.op
    def many(x: i64[N]):
        found = []
        for n in range(count):
            t = po.tensor(f"t{n}")
            t[i] = x[i] * n + 1
            found.append(t)
        return tuple(found)

    return many, (X,)


def reads(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def window(x: i64[N]):
        y = po.tensor("y")
        y[i] = functools.reduce(operator.add, (x.pad(0)[i + n] * n for n in range(-count // 2, count // 2)))
        return y

    return window, (X,)


def pieces(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """One tensor of many equations, an element or a remainder each."""

    @po.op
    def remainders(x: i64[N]):
        y = po.tensor("y")
        for n in range(count):
            y[i] = po.when(i % count == n, x[i] * n)
        return y

    return remainders, (X,)


def guards(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def cases(x: i64[N]):
        y = po.tensor("y")
        condition = functools.reduce(operator.or_, ((i == 2 * n) | (i == 3 * n + 1) for n in range(count)))
        y[i] = po.where(condition, x[i], -x[i])
        return y

    return cases, (X,)


def many_sums(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def accumulated(x: i64[N]):
        y = po.tensor("y", shape=(N,))
        for n in range(count):
            k = po.index(f"k{n}", extent=N)
            y[i] += x[i] * x[k] + n
        return y

    return accumulated, (X,)


def system(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """A ring of recurrences."""

    @po.op
    def ring(x: i64[N]):
        found = po.tensors(" ".join(f"r{n}" for n in range(count)))
        t = po.index("t", 1, N)
        for n, tensor in enumerate(found):
            tensor[0] = x[0] + n
            tensor[t] = found[n - 1][t - 1] % 1000 + x[t]
        return found[0]

    return ring, (X,)


def high_rank(rank: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    names = [f"a{n}" for n in range(rank)]
    indices = tuple(po.index(name) for name in names)

    def copy(x):
        y = po.tensor("y")
        y[indices] = x[indices] + x[tuple(reversed(indices))]
        return y

    return po.op(copy), (np.arange(2**rank).reshape((2,) * rank),)


def contraction(rank: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    indices = tuple(po.index(f"a{n}") for n in range(rank))

    def total(x, y):
        s = po.tensor("s")
        s[indices[0]] += x[indices] * y[tuple(reversed(indices))]
        return s

    array = np.arange(2**rank).reshape((2,) * rank)
    return po.op(total), (array, array)


def coefficient(factor: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """Subscripts that would leave the array by far, and are brought back."""

    @po.op
    def scaled(x: i64[N]):
        y = po.tensor("y")
        y[i] = x.clamp()[i * factor - factor] + x.pad(7)[i * factor] + po.where(i * factor < 5 * factor, x[i], 0)
        return y

    return scaled, (X,)


def modulus(divisor: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def turned(x: i64[N]):
        y = po.tensor("y")
        y[i] = x.wrap()[i * divisor + 5] + x.pad(0)[(i * divisor) // (divisor - 1)] + (i * divisor) % (divisor + 2)
        return y

    return turned, (X,)


def nested_quotients(depth: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def quotients(x: i64[N]):
        y = po.tensor("y", shape=(N,))
        k = at = po.index("k", extent=N)
        for n in range(depth):
            at = (at * 3 + n) // 2
        y[k] = x.wrap()[at]
        return y

    return quotients, (X,)


def guarded_quotients(divisor: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """An end of a range that is the least of several quotients of open sizes."""

    @po.op(dynamic=True)
    def guarded(x: i64[M], z: i64[N]):
        y, k = po.tensor("y"), i // divisor + i % 2
        y[2 * i] = po.where(i < M - 1, po.where((k >= 0) & (k < N), z[k], 1), z[N - 1])
        y[2 * i + 1] = po.where((i + i >= 0) & (i + i < N), z[i + i], 1)
        return y

    return guarded, (X[:1], X[:1])


def triangles(depth: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """A sum over a simplex."""
    indices = [po.index(f"a{n}", extent=N) for n in range(depth)]

    @po.op
    def simplex(x: i64[N]):
        s = po.tensor("s")
        inside = functools.reduce(operator.and_, (a <= b for a, b in itertools.pairwise(indices)), indices[0] >= 0)
        s[()] += po.when(inside, functools.reduce(operator.add, (x[a] for a in indices)))
        return s

    return simplex, (X[:5],)


def transposes(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def turned(x: f64[M, M]):
        value = x
        for _ in range(count):
            value = value @ x.T
        return value

    return turned, (np.eye(5),)


def time_steps(steps: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    @po.op
    def wave(x: i64[N]):
        u, t = po.tensor("u"), po.index("t", 1, steps)
        u[0, i] = x[i]
        u[1, i] = x[i] * 2
        u[t + 1, i] = (u.clamp()[t, i - 1] + u.clamp()[t, i + 1] - u[t - 1, i]) % 1000
        return u[steps]

    return wave, (X,)


def skewed(count: int) -> tuple[po.Op, tuple[np.ndarray, ...]]:
    """A recurrence with many distances."""

    @po.op
    def table(x: i64[N]):
        d = po.tensor("d", shape=(N, N))
        inside = (i >= count) & (j >= count)
        steps = [d[i - a, j - b] for a in range(count + 1) for b in range(count + 1) if a or b]
        d[i, j] = po.where(inside, functools.reduce(operator.add, steps) % 1000, x[i] + x[j])
        return d

    return table, (X,)


ADVERSARIES = {
    family.__name__: Adversary(family, sizes)
    for family, sizes in (
        (deep_sum, (10, 100, 300, 600, 900)),
        (deep_where, (3, 10, 20, 40, 80)),
        (data_where, (5, 20, 60, 120, 240)),
        (chain, (2, 5, 10, 20, 40)),
        (sums, (2, 5, 10, 20, 30)),
        (wide, (5, 10, 20, 40, 80)),
        (reads, (10, 40, 80, 160, 320)),
        (pieces, (2, 3, 6, 12, 24)),
        (guards, (2, 4, 8, 16, 32)),
        (many_sums, (2, 4, 8, 16, 32)),
        (system, (2, 3, 5, 8, 12)),
        (high_rank, (3, 5, 7, 9, 11)),
        (contraction, (2, 3, 5, 7, 9)),
        (coefficient, (2, 1000, 10**6, 2**31 - 1, 2**40 + 1)),
        (modulus, (3, 64, 1009, 65537, 10**9 + 7)),
        (nested_quotients, (1, 2, 4, 8, 16)),
        (guarded_quotients, (2, 3, 4, 5, 7)),
        (triangles, (2, 3, 4, 5, 6)),
        (transposes, (2, 4, 8, 16, 24)),
        (time_steps, (2, 3, 10, 100, 1000)),
        (skewed, (1, 2, 3, 4, 5)),
    )
}


def check(name: str, size: int) -> str:
    """Compiles, runs and compares one; an error of ours that the reference shares is right, too."""
    make = ADVERSARIES[name].make
    try:
        op, arguments = make(size)
        found = op(*arguments)
    except po.PolyoptError as error:
        try:
            make(size)[0].reference(*arguments, numerics="strict")
        except po.PolyoptError:
            return f"refused: {type(error).__name__}: {error.what}"
        return f"refused by the kernel alone: {type(error).__name__}: {error.what}"
    wanted = op.reference(*arguments, numerics="strict")
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        np.testing.assert_array_equal(one, other)
    return "right"


def cases() -> Iterator[tuple[str, int]]:
    for name, adversary in ADVERSARIES.items():
        for size in adversary.sizes:
            yield name, size
