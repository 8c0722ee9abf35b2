"""polyopt: tensor operators from equations, scheduled and proved by the polyhedral method.

    import polyopt as po
    from polyopt import f32

    M, N, K = po.sizes("M N K")
    i, j, k = po.indices("i j k")

    @po.op
    def linear(x: f32[M, K], w: f32[K, N]):
        y = po.tensor("y")
        y[i, j] += x[i, k] * w[k, j]
        return y

Importing it loads NumPy alone; what compiles and runs is loaded when an op is first made or called.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from polyopt.dsl import einsum as _einsum
from polyopt.dsl import spans as _spans
from polyopt.dsl import trace as _trace
from polyopt.dsl.functions import (
    abs,
    cast,
    ceil,
    clip,
    cos,
    cosh,
    erf,
    exp,
    exp2,
    expm1,
    floor,
    gelu,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    maximum,
    minimum,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    silu,
    sin,
    sinh,
    softplus,
    sqrt,
    tan,
    tanh,
)
from polyopt.dsl.reductions import all, any, argmax, argmin, max, mean, min, prod, reduce, sum
from polyopt.dsl.shaping import concatenate, stack
from polyopt.dsl.sugar import arange, eye, full, ones, softmax, zeros
from polyopt.dsl.symbols import index, indices, size, sizes, tensor, tensors, when, where
from polyopt.dsl.tensor import Tensor
from polyopt.dtypes import DType, bf16, bool_, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64
from polyopt.errors import (
    ArgumentError,
    BackendUnavailable,
    BoundsError,
    CacheError,
    CompileError,
    DefinitionError,
    DTypeError,
    LegalityError,
    PolyoptError,
    ScheduleError,
    ShapeError,
)

if TYPE_CHECKING:
    from polyopt.api import Op, op, set_num_threads, strict_checks

__version__ = "0.1.0"

_FROM_API = frozenset({"Op", "op", "set_num_threads", "strict_checks"})


def einsum(*arguments: Any, **options: Any) -> Any:
    """numpy.einsum: inside an op one equation over whole tensors, outside computed at once.

    Takes a specification and operands, or operands and lists of labels. Inside an op the only option with a meaning
    is `dtype=`; outside all of NumPy's are accepted.
    """
    try:
        if _trace.is_tracing():
            return _einsum.einsum_in_op(*arguments, **options)
        api: Any = importlib.import_module("polyopt.api")
        return api.einsum(*arguments, **options)
    except PolyoptError as error:
        _spans.hide_internals(error)
        raise


def __getattr__(name: str) -> Any:
    if name in _FROM_API:
        return getattr(importlib.import_module("polyopt.api"), name)
    instead = _AS_EQUATIONS.get(name)
    meant = f"; as equations: {instead}" if instead is not None else ""
    raise AttributeError(f"module 'polyopt' has no attribute {name!r}{meant}")


_AS_EQUATIONS = {
    "cumsum": "s[0] = x[0] and s[i + 1] = s[i] + x[i + 1]",
    "cumprod": "p[0] = x[0] and p[i + 1] = p[i] * x[i + 1]",
    "diag": "d[i] = a[i, i]",
    "dot": "a @ b",
    "expand_dims": "x[:, None]",
    "flip": "x[::-1]",
    "matmul": "a @ b",
    "outer": "y[i, j] = a[i] * b[j]",
    "pad": "y[i] = x.pad(0)[i - 1] with po.index('i', extent=N + 2)",
    "repeat": "y[i] = x[i // 2] with po.index('i', extent=2 * N)",
    "roll": "y[i] = x.wrap()[i - 1] with po.index('i', extent=N)",
    "std": "m[i] = po.mean(x[i, j], j) and s[i] = po.sqrt(po.mean((x[i, j] - m[i]) ** 2, j))",
    "tile": "y[i] = x[i % N] with po.index('i', extent=2 * N)",
    "trace": "t[()] += a[i, i]",
    "tril": "y[i, j] = po.where(j <= i, a[i, j], 0)",
    "triu": "y[i, j] = po.where(j >= i, a[i, j], 0)",
    "var": "m[i] = po.mean(x[i, j], j) and v[i] = po.mean((x[i, j] - m[i]) ** 2, j)",
    "zeros_like": "po.zeros(x.shape, x.dtype)",
    "ones_like": "po.ones(x.shape, x.dtype)",
}
"""What NumPy has a function for, in whose names people think."""


def __dir__() -> list[str]:
    return sorted({*globals(), *_FROM_API})


__all__ = [
    "ArgumentError",
    "BackendUnavailable",
    "BoundsError",
    "CacheError",
    "CompileError",
    "DType",
    "DTypeError",
    "DefinitionError",
    "LegalityError",
    "Op",
    "PolyoptError",
    "ScheduleError",
    "ShapeError",
    "Tensor",
    "abs",
    "all",
    "any",
    "arange",
    "argmax",
    "argmin",
    "bf16",
    "bool_",
    "cast",
    "ceil",
    "clip",
    "concatenate",
    "cos",
    "cosh",
    "einsum",
    "erf",
    "exp",
    "exp2",
    "expm1",
    "eye",
    "f16",
    "f32",
    "f64",
    "floor",
    "full",
    "gelu",
    "i8",
    "i16",
    "i32",
    "i64",
    "index",
    "indices",
    "isinf",
    "isnan",
    "log",
    "log1p",
    "log2",
    "max",
    "maximum",
    "mean",
    "min",
    "minimum",
    "ones",
    "op",
    "prod",
    "reduce",
    "relu",
    "round",
    "rsqrt",
    "set_num_threads",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "sinh",
    "size",
    "sizes",
    "softmax",
    "softplus",
    "sqrt",
    "stack",
    "strict_checks",
    "sum",
    "tan",
    "tanh",
    "tensor",
    "tensors",
    "u8",
    "u16",
    "u32",
    "u64",
    "when",
    "where",
    "zeros",
]
