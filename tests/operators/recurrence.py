"""Scans, recurrent networks, dynamic programming, cellular automata."""

from __future__ import annotations

import numpy as np

import polyopt as po
from polyopt import i32
from tests.operators.operator import PRECISE, Array, Draw, Operator

i, j, k, n, s, r, b = po.indices("i j k n s r b")


# --- scans ----------------------------------------------------------------------------------------------------


@po.op
def cumulative_sum(x):
    y = po.tensor("y")
    y[i, j] = x[i, j] + po.where(j == 0, 0, y[i, j - 1])
    return y


@po.op
def cumulative_product(x):
    y = po.tensor("y")
    y[i] = y.pad(1)[i - 1] * x[i]
    return y


@po.op
def cumulative_max(x):
    y = po.tensor("y")
    y[0] = x[0]
    y[i] = po.when(i > 0, po.maximum(y[i - 1], x[i]))
    return y


@po.op
def prefix_sums(x):
    """Every prefix as its own sum: a triangular domain."""
    i = po.index("i", extent=x.shape[0])
    y = po.tensor("y")
    y[i] = po.sum(x[j], j, where=j <= i)
    return y


@po.op
def moving_average(x, rate):
    """Exponential: y[i] = rate x[i] + (1 - rate) y[i - 1]."""
    y = po.tensor("y")
    y[i] = po.where(i == 0, x[i], rate[()] * x[i] + (1 - rate[()]) * y[i - 1])
    return y


def moving_average_numpy(x: Array, rate: Array) -> Array:
    y = x.copy()
    for i in range(1, len(x)):
        y[i] = rate * x[i] + (1 - rate) * y[i - 1]
    return y


@po.op
def iir_filter(x, forward, feedback):
    """A biquad along each row."""
    y = po.tensor("y")
    y[i, j] = (
        forward[0] * x[i, j]
        + forward[1] * x.pad(0)[i, j - 1]
        + forward[2] * x.pad(0)[i, j - 2]
        - feedback[0] * y.pad(0)[i, j - 1]
        - feedback[1] * y.pad(0)[i, j - 2]
    )
    return y


def iir_filter_numpy(x: Array, forward: Array, feedback: Array) -> Array:
    y = np.zeros_like(x)
    for j in range(x.shape[1]):
        for lag in range(min(3, j + 1)):
            y[:, j] += forward[lag] * x[:, j - lag]
        for lag in range(1, min(3, j + 1)):
            y[:, j] -= feedback[lag - 1] * y[:, j - lag]
    return y


@po.op
def horner(coefficient, x):
    """A polynomial at each x, by a recurrence over its coefficients."""
    m = coefficient.shape[0]
    k, i = po.index("k", extent=m), po.index("i", extent=x.shape[0])
    p = po.tensor("p")
    p[0, i] = 0
    p[k + 1, i] = p[k, i] * x[i] + coefficient[k]
    return p[m]


# --- recurrent networks ---------------------------------------------------------------------------------------


@po.op
def lstm(x, w, u, bias):
    """Hidden states of a sequence x[time, batch, feature]; gates input, forget, output, candidate."""
    t = po.index("t", extent=x.shape[0])
    g = po.index("g", extent=4)
    j = po.index("j", extent=u.shape[2])
    b = po.index("b", extent=x.shape[1])
    z, c, h = po.tensors("z c h")
    h[0, b, j] = 0
    c[0, b, j] = 0
    z[t, b, g, j] = bias[g, j] + po.sum(x[t, b, k] * w[g, j, k], k) + po.sum(h[t, b, k] * u[g, j, k], k)
    c[t + 1, b, j] = po.sigmoid(z[t, b, 1, j]) * c[t, b, j] + po.sigmoid(z[t, b, 0, j]) * po.tanh(z[t, b, 3, j])
    h[t + 1, b, j] = po.sigmoid(z[t, b, 2, j]) * po.tanh(c[t + 1, b, j])
    return h


def lstm_numpy(x: Array, w: Array, u: Array, bias: Array) -> Array:
    steps, batch, hidden = x.shape[0], x.shape[1], u.shape[2]
    h, c = np.zeros((steps + 1, batch, hidden)), np.zeros((batch, hidden))
    for t in range(steps):
        z = np.einsum("bk,gjk->bgj", x[t], w) + np.einsum("bk,gjk->bgj", h[t], u) + bias
        gate = 1 / (1 + np.exp(-z))
        c = gate[:, 1] * c + gate[:, 0] * np.tanh(z[:, 3])
        h[t + 1] = gate[:, 2] * np.tanh(c)
    return h


@po.op
def gru(x, h0, w, u):
    """Hidden states of a sequence; gates reset and update, then the candidate."""
    t = po.index("t", extent=x.shape[0])
    reset, update, candidate, h = po.tensors("reset update candidate h")
    h[0, b, j] = h0[b, j]
    reset[t, b, j] = po.sigmoid(po.sum(x[t, b, k] * w[0, j, k], k) + po.sum(h[t, b, k] * u[0, j, k], k))
    update[t, b, j] = po.sigmoid(po.sum(x[t, b, k] * w[1, j, k], k) + po.sum(h[t, b, k] * u[1, j, k], k))
    candidate[t, b, j] = po.tanh(
        po.sum(x[t, b, k] * w[2, j, k], k) + po.sum(reset[t, b, k] * h[t, b, k] * u[2, j, k], k)
    )
    h[t + 1, b, j] = update[t, b, j] * h[t, b, j] + (1 - update[t, b, j]) * candidate[t, b, j]
    return h


def gru_numpy(x: Array, h0: Array, w: Array, u: Array) -> Array:
    h = [h0]
    for step in x:
        reset = 1 / (1 + np.exp(-(step @ w[0].T + h[-1] @ u[0].T)))
        update = 1 / (1 + np.exp(-(step @ w[1].T + h[-1] @ u[1].T)))
        candidate = np.tanh(step @ w[2].T + (reset * h[-1]) @ u[2].T)
        h.append(update * h[-1] + (1 - update) * candidate)
    return np.stack(h)


# --- dynamic programming --------------------------------------------------------------------------------------


@po.op
def longest_common_subsequence(a, c):
    best = po.tensor("best", dtype=i32)
    best[i, j] = po.where(
        a[i] == c[j],
        best.pad(0)[i - 1, j - 1] + 1,
        po.maximum(best.pad(0)[i - 1, j], best.pad(0)[i, j - 1]),
    )
    return best


def longest_common_subsequence_numpy(a: Array, c: Array) -> Array:
    best = np.zeros((len(a) + 1, len(c) + 1), np.int32)
    for i in range(len(a)):
        for j in range(len(c)):
            match = a[i] == c[j]
            best[i + 1, j + 1] = best[i, j] + 1 if match else max(best[i, j + 1], best[i + 1, j])
    return best[1:, 1:]


@po.op
def smith_waterman(a, c):
    """Local alignment scores: match 3, mismatch -3, gap -2."""
    score = po.tensor("score", dtype=i32)
    score[i, j] = po.maximum(
        po.maximum(score.pad(0)[i - 1, j - 1] + po.where(a[i] == c[j], 3, -3), 0),
        po.maximum(score.pad(0)[i - 1, j] - 2, score.pad(0)[i, j - 1] - 2),
    )
    return score, po.max(score)


def smith_waterman_numpy(a: Array, c: Array) -> tuple[Array, Array]:
    score = np.zeros((len(a) + 1, len(c) + 1), np.int32)
    for i in range(len(a)):
        for j in range(len(c)):
            match = score[i, j] + (3 if a[i] == c[j] else -3)
            score[i + 1, j + 1] = max(0, match, score[i, j + 1] - 2, score[i + 1, j] - 2)
    return score[1:, 1:], score.max()


@po.op
def edit_distance(a, c):
    m, n = a.shape[0], c.shape[0]
    d = po.tensor("d", shape=(m + 1, n + 1), dtype=i32)
    i, j = po.index("i", extent=m), po.index("j", extent=n)
    d[i + 1, 0] = i + 1
    d[0, j + 1] = j + 1
    d[0, 0] = 0
    d[i + 1, j + 1] = po.minimum(
        po.minimum(d[i, j + 1], d[i + 1, j]) + 1,
        d[i, j] + po.where(a[i] == c[j], 0, 1),
    )
    return d[m, n]


def edit_distance_numpy(a: Array, c: Array) -> Array:
    d = np.zeros((len(a) + 1, len(c) + 1), np.int32)
    d[:, 0] = np.arange(len(a) + 1)
    d[0] = np.arange(len(c) + 1)
    for i in range(len(a)):
        for j in range(len(c)):
            d[i + 1, j + 1] = min(d[i, j + 1] + 1, d[i + 1, j] + 1, d[i, j] + (a[i] != c[j]))
    return d[-1, -1]


@po.op
def knapsack(weight, value, capacity: int):
    """best[n, w]: the most value that the first n items give within weight w."""
    w = po.index("w", extent=capacity + 1)
    items = weight.shape[0]
    n = po.index("n", extent=items)
    best = po.tensor("best", dtype=value.dtype)
    best[0, w] = 0
    best[n + 1, w] = po.where(
        w >= weight[n],
        po.maximum(best[n, w], best[n, po.maximum(w - weight[n], 0)] + value[n]),
        best[n, w],
    )
    return best[items, capacity]


def knapsack_numpy(weight: Array, value: Array, capacity: int) -> Array:
    best = np.zeros(capacity + 1, value.dtype)
    for item, worth in zip(weight, value, strict=True):
        with_item = best[: capacity + 1 - item] + worth
        best[item:] = np.maximum(best[item:], with_item)
    return best[capacity]


@po.op
def viterbi(start, move, emit, seen):
    """Log-probability of the best path that ends in each state, per step."""
    steps = seen.shape[0]
    t = po.index("t", 1, steps)
    best = po.tensor("best")
    best[0, s] = start[s] + emit[s, seen[0]]
    best[t, s] = po.max(best[t - 1, r] + move[r, s], r) + emit[s, seen[t]]
    return best


def viterbi_numpy(start: Array, move: Array, emit: Array, seen: Array) -> Array:
    best = [start + emit[:, seen[0]]]
    for symbol in seen[1:]:
        best.append((best[-1][:, None] + move).max(axis=0) + emit[:, symbol])
    return np.stack(best)


@po.op
def matrix_chain(p):
    """The fewest multiplications for a product of matrices p[i] by p[i + 1]."""
    m = p.shape[0] - 1
    i, j = po.index("i", extent=m), po.index("j", extent=m)
    cost = po.tensor("cost", dtype=p.dtype)
    cost[i, j] = po.where(
        i < j, po.min(cost[i, k] + cost[k + 1, j] + p[i] * p[k + 1] * p[j + 1], k, where=(i <= k) & (k < j)), 0
    )
    return cost


def matrix_chain_numpy(p: Array) -> Array:
    m = len(p) - 1
    cost = np.zeros((m, m), p.dtype)
    for i in reversed(range(m)):
        for j in range(i + 1, m):
            cost[i, j] = min(cost[i, k] + cost[k + 1, j] + p[i] * p[k + 1] * p[j + 1] for k in range(i, j))
    return cost


# --- automata -------------------------------------------------------------------------------------------------


@po.op
def life(world, steps: int):
    """Conway's game on a torus."""
    t = po.index("t", extent=steps)
    di, dj = po.index("di", -1, 2), po.index("dj", -1, 2)
    alive, near = po.tensors("alive near")
    alive[0, i, j] = world[i, j]
    near[t, i, j] = po.sum(alive.wrap()[t, i + di, j + dj], (di, dj)) - alive[t, i, j]
    alive[t + 1, i, j] = po.cast((near[t, i, j] == 3) | ((near[t, i, j] == 2) & (alive[t, i, j] == 1)), world.dtype)
    return alive[steps]


def life_numpy(world: Array, steps: int) -> Array:
    for _ in range(steps):
        near = sum(
            np.roll(world, (di, dj), axis=(0, 1)) for di in (-1, 0, 1) for dj in (-1, 0, 1) if (di, dj) != (0, 0)
        )
        world = ((near == 3) | ((near == 2) & (world == 1))).astype(world.dtype)
    return world


@po.op
def rule_110(cells, steps: int):
    """A one-dimensional automaton, every generation kept."""
    t = po.index("t", extent=steps)
    x = po.tensor("x")
    x[0, i] = cells[i]
    x[t + 1, i] = (x[t, i] | x.wrap()[t, i + 1]) & ~(x.wrap()[t, i - 1] & x[t, i] & x.wrap()[t, i + 1])
    return x


def rule_110_numpy(cells: Array, steps: int) -> Array:
    x = [cells]
    for _ in range(steps):
        left, centre, right = np.roll(x[-1], 1), x[-1], np.roll(x[-1], -1)
        x.append((centre | right) & ~(left & centre & right))
    return np.stack(x)


LINE = {"N": 64}
PAIR = {"M": 16, "N": 16}


def letters(draw: Draw, n: int) -> Array:
    return draw.indices(n, below=4)


OPERATORS = (
    Operator(
        "cumulative_sum",
        cumulative_sum,
        lambda x: np.cumsum(x, axis=1),
        lambda draw, m, n: (draw(m, n),),
        PAIR,
        ("f32", "f64", "i32", "i64"),
    ),
    Operator(
        "cumulative_product",
        cumulative_product,
        np.cumprod,
        lambda draw, n: (draw.positive(n),),
        {"N": 16},
        ("f32", "f64", "i64"),
    ),
    Operator(
        "cumulative_max",
        cumulative_max,
        np.maximum.accumulate,
        lambda draw, n: (draw(n),),
        LINE,
        ("f32", "i32", "f64", "i8", "u8", "f16", "i64"),
        nonempty=frozenset("N"),
    ),
    Operator(
        "prefix_sums",
        prefix_sums,
        np.cumsum,
        lambda draw, n: (draw(n),),
        LINE,
        ("f32", "i32", "f64", "i8", "u8", "f16"),
        integers="sum",
    ),
    Operator(
        "moving_average",
        moving_average,
        moving_average_numpy,
        lambda draw, n: (draw(n), draw.exactly(np.array(0.3))),
        LINE,
        PRECISE,
    ),
    Operator(
        "iir_filter",
        iir_filter,
        iir_filter_numpy,
        lambda draw, m, n: (draw(m, n), draw(3), draw.exactly(np.array([-0.5, 0.2]))),
        PAIR,
        PRECISE,
    ),
    Operator(
        "horner",
        horner,
        lambda c, x: np.polyval(c, x),
        lambda draw, m, n: (draw(m), draw(n)),
        {"M": 8, "N": 32},
        PRECISE,
    ),
    Operator(
        "lstm",
        lstm,
        lstm_numpy,
        lambda draw, t, n, k: (draw(t, 2, k), draw(4, n, k), draw(4, n, n), draw(4, n)),
        {"T": 4, "N": 8, "K": 8},
        PRECISE,
    ),
    Operator(
        "gru",
        gru,
        gru_numpy,
        lambda draw, t, n, k: (draw(t, 3, k), draw(3, n), draw(3, n, k), draw(3, n, n)),
        {"T": 4, "N": 8, "K": 8},
        PRECISE,
    ),
    Operator(
        "longest_common_subsequence",
        longest_common_subsequence,
        longest_common_subsequence_numpy,
        lambda draw, m, n: (letters(draw, m), letters(draw, n)),
        PAIR,
        ("i64",),
    ),
    Operator(
        "smith_waterman",
        smith_waterman,
        smith_waterman_numpy,
        lambda draw, m, n: (letters(draw, m), letters(draw, n)),
        PAIR,
        ("i64",),
        nonempty=frozenset("MN"),
    ),
    Operator(
        "edit_distance",
        edit_distance,
        edit_distance_numpy,
        lambda draw, m, n: (letters(draw, m), letters(draw, n)),
        PAIR,
        ("i64",),
    ),
    Operator(
        "knapsack",
        knapsack,
        knapsack_numpy,
        lambda draw, n, c: (draw.indices(n, below=4) + 1, draw.positive(n), c),
        {"N": 8, "C": 16},
        ("i32", "f32", "f64", "i64"),
    ),
    Operator(
        "viterbi",
        viterbi,
        viterbi_numpy,
        lambda draw, t, n: (draw(n), draw(n, n), draw(n, 5), draw.indices(t, below=5)),
        {"T": 8, "N": 8},
        PRECISE,
        nonempty=frozenset("TN"),
    ),
    Operator(
        "matrix_chain",
        matrix_chain,
        matrix_chain_numpy,
        lambda draw, n: (draw.positive(n + 1),),
        {"N": 16},
        ("i32", "i64", "f64"),
    ),
    Operator(
        "life",
        life,
        life_numpy,
        lambda draw, m, n: (draw.exactly(draw.random.integers(0, 2, (m, n))), 3),
        PAIR,
        ("i32", "u8", "i64", "i8"),
    ),
    Operator(
        "rule_110",
        rule_110,
        rule_110_numpy,
        lambda draw, n: (draw.exactly(draw.random.integers(0, 2, n)), 4),
        LINE,
        ("bool", "u8", "i32"),
    ),
)
