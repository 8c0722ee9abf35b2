"""Images, prices, particles."""

from __future__ import annotations

import math

import numpy as np

import polyopt as po
from tests.operators.operator import PRECISE, Array, Operator

i, j, k, d = po.indices("i j k d")


# --- images ---------------------------------------------------------------------------------------------------


@po.op
def box_blur(x):
    """Three by three, first along the rows, then along the columns."""
    r = po.index("r", extent=3)
    across, down = po.tensors("across down")
    across[i, j] = po.sum(x[i, j + r], r) / 3
    down[i, j] = po.sum(across[i + r, j], r) / 3
    return down


def box_blur_numpy(x: Array) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (3, 3)).mean(axis=(2, 3))


@po.op
def unsharp_mask(x, amount: float):
    """The image plus its difference from a blurred copy; the border repeats the nearest pixel."""
    across, blurred, sharp = po.tensors("across blurred sharp")
    tap = (1 / 16, 4 / 16, 6 / 16, 4 / 16, 1 / 16)
    across[i, j] = sum(tap[r] * x.clamp()[i, j + r - 2] for r in range(5))
    blurred[i, j] = sum(tap[r] * across.clamp()[i + r - 2, j] for r in range(5))
    sharp[i, j] = po.clip(x[i, j] + amount * (x[i, j] - blurred[i, j]), 0, 1)
    return sharp


def unsharp_mask_numpy(x: Array, amount: float) -> Array:
    tap = np.array([1, 4, 6, 4, 1]) / 16
    padded = np.pad(x, 2, mode="edge")
    h, w = x.shape
    across = sum(tap[r] * padded[:, r : r + w] for r in range(5))
    blurred = sum(tap[r] * across[r : r + h] for r in range(5))
    return np.clip(x + amount * (x - blurred), 0, 1)


@po.op
def sobel(x):
    i, j = po.index("i", extent=x.shape[0]), po.index("j", extent=x.shape[1])
    dx, dy, size = po.tensors("dx dy size")
    z = x.pad(0)
    dx[i, j] = sum(weight * (z[i + r, j + 1] - z[i + r, j - 1]) for r, weight in ((-1, 1), (0, 2), (1, 1)))
    dy[i, j] = sum(weight * (z[i + 1, j + r] - z[i - 1, j + r]) for r, weight in ((-1, 1), (0, 2), (1, 1)))
    size[i, j] = po.sqrt(dx[i, j] ** 2 + dy[i, j] ** 2)
    return size


def sobel_numpy(x: Array) -> Array:
    z = np.pad(x, 1)
    h, w = x.shape
    at = lambda di, dj: z[1 + di : 1 + di + h, 1 + dj : 1 + dj + w]  # noqa: E731  # a shift reads best inline
    dx = at(-1, 1) - at(-1, -1) + 2 * (at(0, 1) - at(0, -1)) + at(1, 1) - at(1, -1)
    dy = at(1, -1) - at(-1, -1) + 2 * (at(1, 0) - at(-1, 0)) + at(1, 1) - at(-1, 1)
    return np.hypot(dx, dy)


@po.op
def harris(x):
    """Corner response: determinant of the summed gradient products less a share of the squared trace."""
    r, s = po.index("r", extent=3), po.index("s", extent=3)
    dx, dy, xx, xy, yy, response = po.tensors("dx dy xx xy yy response")
    dx[i, j] = (x[i, j + 2] - x[i, j]) + 2 * (x[i + 1, j + 2] - x[i + 1, j]) + (x[i + 2, j + 2] - x[i + 2, j])
    dy[i, j] = (x[i + 2, j] - x[i, j]) + 2 * (x[i + 2, j + 1] - x[i, j + 1]) + (x[i + 2, j + 2] - x[i, j + 2])
    xx[i, j] += dx[i + r, j + s] * dx[i + r, j + s]
    xy[i, j] += dx[i + r, j + s] * dy[i + r, j + s]
    yy[i, j] += dy[i + r, j + s] * dy[i + r, j + s]
    response[i, j] = xx[i, j] * yy[i, j] - xy[i, j] ** 2 - 0.05 * (xx[i, j] + yy[i, j]) ** 2
    return response


def harris_numpy(x: Array) -> Array:
    across, down = x[:, 2:] - x[:, :-2], x[2:] - x[:-2]
    dx = across[:-2] + 2 * across[1:-1] + across[2:]
    dy = down[:, :-2] + 2 * down[:, 1:-1] + down[:, 2:]
    total = lambda a: np.lib.stride_tricks.sliding_window_view(a, (3, 3)).sum(axis=(2, 3))  # noqa: E731  # used thrice
    xx, xy, yy = total(dx * dx), total(dx * dy), total(dy * dy)
    return xx * yy - xy**2 - 0.05 * (xx + yy) ** 2


@po.op
def resize_nearest(x):
    """Twice as high and three times as wide."""
    y = po.tensor("y")
    y[i, j] = x[i // 2, j // 3]
    return y


@po.op
def downsample(x):
    """Means of 2 by 2 blocks."""
    y = po.tensor("y")
    y[i, j] = (x[2 * i, 2 * j] + x[2 * i + 1, 2 * j] + x[2 * i, 2 * j + 1] + x[2 * i + 1, 2 * j + 1]) / 4
    return y


def downsample_numpy(x: Array) -> Array:
    return (x[::2, ::2] + x[1::2, ::2] + x[::2, 1::2] + x[1::2, 1::2]) / 4


@po.op
def upsample_linear(x):
    """Twice as long: every second sample is the mean of its neighbours."""
    y = po.tensor("y")
    y[2 * i] = x[i]
    y[2 * i + 1] = (x[i] + x.clamp()[i + 1]) / 2
    return y


def upsample_linear_numpy(x: Array) -> Array:
    following = np.append(x[1:], x[-1:])
    return np.stack([x, (x + following) / 2], axis=1).reshape(-1)


# --- prices ---------------------------------------------------------------------------------------------------


@po.op
def black_scholes(spot, strike, years):
    """Prices of European calls and puts at 2 percent interest and 30 percent volatility."""
    rate, volatility = 0.02, 0.3
    d1, d2, discounted, call, put = po.tensors("d1 d2 discounted call put")

    def below(z):
        """The normal distribution function."""
        return 0.5 * (1 + po.erf(z / math.sqrt(2)))

    d1[i] = (po.log(spot[i] / strike[i]) + (rate + volatility**2 / 2) * years[i]) / (volatility * po.sqrt(years[i]))
    d2[i] = d1[i] - volatility * po.sqrt(years[i])
    discounted[i] = strike[i] * po.exp(-rate * years[i])
    call[i] = spot[i] * below(d1[i]) - discounted[i] * below(d2[i])
    put[i] = discounted[i] * below(-d2[i]) - spot[i] * below(-d1[i])
    return call, put


def black_scholes_numpy(spot: Array, strike: Array, years: Array) -> tuple[Array, Array]:
    rate, volatility = 0.02, 0.3
    below = np.vectorize(lambda z: 0.5 * (1 + math.erf(z / math.sqrt(2))), otypes=[float])
    spread = volatility * np.sqrt(years)
    d1 = (np.log(spot / strike) + (rate + volatility**2 / 2) * years) / spread
    discounted = strike * np.exp(-rate * years)
    call = spot * below(d1) - discounted * below(d1 - spread)
    return call, discounted * below(spread - d1) - spot * below(-d1)


@po.op
def binomial_option(spot, strike, steps: int):
    """An American put on a binomial lattice, walked back from expiry."""
    t = po.index("t", extent=steps)
    up, chance, discount = 1.1, 0.52, 0.999
    n, s = po.index("n", extent=steps + 1), po.index("s", extent=steps + 1)
    exercise, worth = po.tensors("exercise worth")
    exercise[i, n, s] = po.maximum(strike[i] - spot[i] * up ** po.cast(2 * s - n, spot.dtype), 0)
    worth[i, steps, s] = exercise[i, steps, s]
    worth[i, t, s] = po.when(
        s <= t,
        po.maximum(exercise[i, t, s], discount * (chance * worth[i, t + 1, s + 1] + (1 - chance) * worth[i, t + 1, s])),
    )
    return worth[:, 0, 0]


def binomial_option_numpy(spot: Array, strike: Array, steps: int) -> Array:
    s = np.arange(steps + 1)
    worth = np.maximum(strike[:, None] - spot[:, None] * 1.1 ** (2 * s - steps), 0)
    for t in reversed(range(steps)):
        exercise = np.maximum(strike[:, None] - spot[:, None] * 1.1 ** (2 * s[: t + 1] - t), 0)
        worth = np.maximum(exercise, 0.999 * (0.52 * worth[:, 1 : t + 2] + 0.48 * worth[:, : t + 1]))
    return worth[:, 0]


# --- particles ------------------------------------------------------------------------------------------------


@po.op
def n_body(position, velocity, mass):
    """One step of softened gravity."""
    apart, inverse, pull, v, p = po.tensors("apart inverse pull v p")
    apart[i, j, d] = position[j, d] - position[i, d]
    inverse[i, j] = po.rsqrt(po.sum(apart[i, j, d] ** 2, d) + 0.01)
    pull[i, d] += mass[j] * apart[i, j, d] * inverse[i, j] ** 3
    v[i, d] = velocity[i, d] + 0.01 * pull[i, d]
    p[i, d] = position[i, d] + 0.01 * v[i, d]
    return p, v


def n_body_numpy(position: Array, velocity: Array, mass: Array) -> tuple[Array, Array]:
    apart = position[None] - position[:, None]
    inverse = 1 / np.sqrt((apart**2).sum(axis=2) + 0.01)
    v = velocity + 0.01 * np.einsum("j,ijd,ij->id", mass, apart, inverse**3)
    return position + 0.01 * v, v


@po.op
def escape_time(x, y, steps: int):
    """How many steps of z^2 + c stay within 2, for c = x + y i."""
    t = po.index("t", extent=steps)
    i, j = po.index("i", extent=y.shape[0]), po.index("j", extent=x.shape[0])
    re, im, count = po.tensor("re"), po.tensor("im"), po.tensor("count", dtype=po.i32)
    re[0, i, j] = x[j]
    im[0, i, j] = y[i]
    count[0, i, j] = 0
    inside = re[t, i, j] ** 2 + im[t, i, j] ** 2 <= 4
    re[t + 1, i, j] = po.where(inside, re[t, i, j] ** 2 - im[t, i, j] ** 2 + x[j], re[t, i, j])
    im[t + 1, i, j] = po.where(inside, 2 * re[t, i, j] * im[t, i, j] + y[i], im[t, i, j])
    count[t + 1, i, j] = count[t, i, j] + po.cast(inside, po.i32)
    return count[steps]


def escape_time_numpy(x: Array, y: Array, steps: int) -> Array:
    c = x[None] + 1j * y[:, None]
    z, count = c.copy(), np.zeros(c.shape, np.int32)
    for _ in range(steps):
        inside = z.real**2 + z.imag**2 <= 4
        z = np.where(inside, z**2 + c, z)
        count += inside
    return count


@po.op
def wave(u0, u1, steps: int):
    """A vibrating string with fixed ends: second order in time."""
    n = u0.shape[0]
    i, t = po.index("i", extent=n), po.index("t", 1, steps)
    u = po.tensor("u")
    u[0, i] = u0[i]
    u[1, i] = u1[i]
    u[t + 1, i] = po.where(
        (i > 0) & (i < n - 1),
        2 * u[t, i] - u[t - 1, i] + 0.25 * (u[t, i - 1] - 2 * u[t, i] + u[t, i + 1]),
        0,
    )
    return u[steps]


def wave_numpy(u0: Array, u1: Array, steps: int) -> Array:
    for _ in range(1, steps):
        u2 = np.zeros_like(u1)
        u2[1:-1] = 2 * u1[1:-1] - u0[1:-1] + 0.25 * (u1[:-2] - 2 * u1[1:-1] + u1[2:])
        u0, u1 = u1, u2
    return u1


@po.op
def heat3d(start, steps: int):
    """Heat in a box whose border keeps its temperature."""
    t = po.index("t", extent=steps)
    l, m, n = start.shape
    u = po.tensor("u")
    inside = (i > 0) & (i < l - 1) & (j > 0) & (j < m - 1) & (k > 0) & (k < n - 1)
    u[0, i, j, k] = start[i, j, k]
    u[t + 1, i, j, k] = u[t, i, j, k] + po.where(
        inside,
        0.125 * (u[t, i + 1, j, k] + u[t, i - 1, j, k] + u[t, i, j + 1, k] + u[t, i, j - 1, k])
        + 0.125 * (u[t, i, j, k + 1] + u[t, i, j, k - 1])
        - 0.75 * u[t, i, j, k],
        0,
    )
    return u[steps]


def heat3d_numpy(start: Array, steps: int) -> Array:
    u = start
    for _ in range(steps):
        new = u.copy()
        around = u[2:, 1:-1, 1:-1] + u[:-2, 1:-1, 1:-1] + u[1:-1, 2:, 1:-1] + u[1:-1, :-2, 1:-1]
        around = around + u[1:-1, 1:-1, 2:] + u[1:-1, 1:-1, :-2]
        new[1:-1, 1:-1, 1:-1] += 0.125 * around - 0.75 * u[1:-1, 1:-1, 1:-1]
        u = new
    return u


IMAGE = {"H": 16, "W": 16}

OPERATORS = (
    Operator(
        "box_blur",
        box_blur,
        box_blur_numpy,
        lambda draw, h, w: (draw(h + 2, w + 2),),
        IMAGE,
        nonempty=frozenset("HW"),
    ),
    Operator(
        "unsharp_mask",
        unsharp_mask,
        unsharp_mask_numpy,
        lambda draw, h, w: (draw.positive(h, w), 0.75),
        IMAGE,
        PRECISE,
        nonempty=frozenset("HW"),
    ),
    Operator("sobel", sobel, sobel_numpy, lambda draw, h, w: (draw(h, w),), IMAGE, PRECISE),
    Operator(
        "harris",
        harris,
        harris_numpy,
        lambda draw, h, w: (draw(h + 4, w + 4),),
        IMAGE,
        PRECISE,
        nonempty=frozenset("HW"),
    ),
    Operator(
        "resize_nearest",
        resize_nearest,
        lambda x: x.repeat(2, axis=0).repeat(3, axis=1),
        lambda draw, h, w: (draw(h, w),),
        IMAGE,
        ("f32", "u8", "f64", "i64", "f16", "bool"),
    ),
    Operator("downsample", downsample, downsample_numpy, lambda draw, h, w: (draw(2 * h, 2 * w),), IMAGE),
    Operator("upsample_linear", upsample_linear, upsample_linear_numpy, lambda draw, n: (draw(n),), {"N": 32}),
    Operator(
        "black_scholes",
        black_scholes,
        black_scholes_numpy,
        lambda draw, n: (draw.positive(n), draw.positive(n), draw.positive(n)),
        {"N": 64},
        PRECISE,
    ),
    Operator(
        "binomial_option",
        binomial_option,
        binomial_option_numpy,
        lambda draw, n, t: (draw.positive(n), draw.positive(n), t),
        {"N": 16, "T": 8},
        PRECISE,
    ),
    Operator(
        "n_body",
        n_body,
        n_body_numpy,
        lambda draw, n: (draw(n, 3), draw(n, 3), draw.positive(n)),
        {"N": 16},
        PRECISE,
    ),
    Operator(
        "escape_time",
        escape_time,
        escape_time_numpy,
        lambda draw, h, w: (draw(w), draw(h), 8),
        IMAGE,
        ("f64",),
    ),
    Operator(
        "wave",
        wave,
        wave_numpy,
        lambda draw, n: (draw(n), draw(n), 4),
        {"N": 32},
        PRECISE,
    ),
    Operator(
        "heat3d",
        heat3d,
        heat3d_numpy,
        lambda draw, l, m, n: (draw(l, m, n), 3),
        {"L": 8, "M": 8, "N": 8},
        PRECISE,
    ),
)
