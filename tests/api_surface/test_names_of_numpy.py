"""What NumPy has a function for and polyopt an equation: the error of the missing name says it, and it holds."""

from __future__ import annotations

import numpy as np
import pytest

import polyopt as po
from polyopt import f64

N = po.size("N")
i, j = po.indices("i j")


@po.op
def as_equations(x: f64[N], a: f64[N, N]):
    sums, products, diagonal, around, each, again, rolled, trace, deviation, variance, mean, table, low, high = (
        po.tensors("sums products diagonal around each again rolled trace deviation variance mean table low high")
    )
    wide, double, same = po.index("wide", extent=N + 2), po.index("double", extent=2 * N), po.index("same", extent=N)
    sums[0] = x[0]
    sums[i + 1] = sums[i] + x[i + 1]
    products[0] = x[0]
    products[i + 1] = products[i] * x[i + 1]
    diagonal[i] = a[i, i]
    around[wide] = x.pad(0)[wide - 1]
    each[double] = x[double // 2]
    again[double] = x[double % N]
    rolled[same] = x.wrap()[same - 1]
    trace[()] += a[i, i]
    mean[i] = po.mean(a[i, j], j)
    deviation[i] = po.sqrt(po.mean((a[i, j] - mean[i]) ** 2, j))
    variance[i] = po.mean((a[i, j] - mean[i]) ** 2, j)
    table[i, j] = x[i] * x[j]
    low[i, j] = po.where(j <= i, a[i, j], 0)
    high[i, j] = po.where(j >= i, a[i, j], 0)
    return {
        "cumsum": sums,
        "cumprod": products,
        "diag": diagonal,
        "pad": around,
        "repeat": each,
        "tile": again,
        "roll": rolled,
        "trace": trace,
        "std": deviation,
        "var": variance,
        "outer": table,
        "matmul": a @ a,
        "dot": a @ x,
        "flip": x[::-1],
        "expand_dims": x[:, None],
        "zeros_like": po.zeros(x.shape, x.dtype),
        "ones_like": po.ones(x.shape, x.dtype),
        "tril": low,
        "triu": high,
    }


def test_the_equations_are_what_the_functions_of_numpy_give() -> None:
    x, a = np.random.default_rng(0).random(5), np.random.default_rng(1).random((5, 5))
    wanted = {
        "cumsum": np.cumsum(x),
        "cumprod": np.cumprod(x),
        "diag": np.diag(a),
        "pad": np.pad(x, 1),
        "repeat": np.repeat(x, 2),
        "tile": np.tile(x, 2),
        "roll": np.roll(x, 1),
        "trace": np.trace(a),
        "std": a.std(axis=1),
        "var": a.var(axis=1),
        "outer": np.outer(x, x),
        "matmul": a @ a,
        "dot": a @ x,
        "flip": np.flip(x),
        "expand_dims": x[:, None],
        "zeros_like": np.zeros(5),
        "ones_like": np.ones(5),
        "tril": np.tril(a),
        "triu": np.triu(a),
    }
    assert wanted.keys() == po._AS_EQUATIONS.keys()
    for name, found in as_equations(x, a).items():
        np.testing.assert_allclose(found, wanted[name], err_msg=name)
        with pytest.raises(AttributeError, match=f"no attribute '{name}'; as equations: "):
            getattr(po, name)


def test_a_name_that_nothing_stands_for_is_missing_as_in_any_module() -> None:
    assert not hasattr(po, "cumsum")
    with pytest.raises(AttributeError, match=r"^module 'polyopt' has no attribute 'no_such_name'$"):
        po.no_such_name
