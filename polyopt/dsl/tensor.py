"""The tensors that the user's function holds: subscripts, definitions, and NumPy's whole-tensor operators."""

from __future__ import annotations

from typing import Any, NoReturn

from polyopt.dsl import broadcast, shaping, subscripts
from polyopt.dsl.elaborate import dtype_now
from polyopt.dsl.expr import (
    Accumulation,
    AffineSize,
    Boundary,
    Call,
    Element,
    Expr,
    Literal,
    Scalar,
    Update,
    as_expr,
    source_text,
)
from polyopt.dsl.operators import Operators
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle
from polyopt.dtypes import DType
from polyopt.errors import DefinitionError


class UnknownAttribute(DefinitionError, AttributeError):
    """A tensor has no such attribute."""


_FUNCTIONS = frozenset({
    "abs", "all", "any", "argmax", "argmin", "ceil", "clip", "cos", "cosh", "erf", "exp", "exp2", "expm1", "floor",
    "isinf", "isnan", "log", "log1p", "log2", "max", "maximum", "mean", "min", "minimum", "prod", "relu", "round",
    "rsqrt", "sigmoid", "sign", "sin", "sinh", "softmax", "sqrt", "sum", "tan", "tanh",
})  # fmt: skip
"""Methods of NumPy's and PyTorch's arrays that are functions here."""
_OWN = frozenset({"T", "clamp", "dtype", "pad", "reshape", "transpose", "wrap"})
_INSTEAD = {
    "astype": "po.cast(x, f32).",
    "to": "po.cast(x, f32).",
    "copy": "use the tensor itself: nothing overwrites it.",
    "size": "x.shape[0], or a product of such.",
    "dot": "x @ y.",
    "flatten": "x.reshape(-1).",
    "ravel": "x.reshape(-1).",
}


class Tensor(Handle):
    """A tensor of an op: `y[i, j]` is an element, `y[i, j] = e` and `y[i, j] += e` define, `y + z` works as NumPy's."""

    __slots__ = ()

    # --- elements and definitions -----------------------------------------------------------------------------

    def __getitem__(self, key: object) -> Any:
        return subscripts.subscript(self, key, None)

    def __setitem__(self, key: object, value: object) -> None:
        left = subscripts.left_side(self, key)
        if isinstance(value, Accumulation) and _accumulates(value, self, left):
            self.state.define(self, left, value.added, value.kind, is_whole=False)
        elif isinstance(value, Update) and _accumulates(value, self, left):
            raise _updated(value.args[0])
        else:
            expr = as_expr(value, f"as the definition of '{self.name}'")
            self.state.define(self, left, expr, is_whole=False)

    def pad(self, value: Scalar = 0) -> BoundedTensor:
        """The tensor with `value` outside its box."""
        if not isinstance(as_expr(value), Literal):
            raise DefinitionError(
                "the value of pad must be a number",
                where=user_span(),
                fix="choose another value with po.where((0 <= i) & (i < N), x[i], value).",
            )
        return BoundedTensor(self, Boundary("pad", value))

    def clamp(self) -> BoundedTensor:
        """The tensor with the nearest element outside its box."""
        return BoundedTensor(self, Boundary("clamp"))

    def wrap(self) -> BoundedTensor:
        """The tensor repeated periodically outside its box."""
        return BoundedTensor(self, Boundary("wrap"))

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[AffineSize | int, ...]:
        """The extents: numbers, or symbolic sizes."""
        return tuple(subscripts.as_size(extent) for extent in subscripts.require_extents(self, "shape"))

    @property
    def ndim(self) -> int:
        return broadcast.rank_of(self)

    @property
    def dtype(self) -> DType:
        """The dtype; for a local tensor, what the definitions so far say."""
        return dtype_now(self)

    @property
    def T(self) -> Tensor:  # NumPy's name
        return self.transpose()

    def transpose(self, *axes: Any) -> Tensor:
        """The dimensions permuted, reversed without arguments, as `numpy.ndarray.transpose`."""
        return shaping.transpose(self, *axes)  # type: ignore[return-value]  # traces make Tensors

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order in another shape; one extent may be -1."""
        return shaping.reshape(self, *shape)  # type: ignore[return-value]  # traces make Tensors

    def __getattr__(self, name: str) -> NoReturn:
        """What arrays of other libraries have and a tensor has not, said with polyopt's word for it."""
        if name.startswith("_"):  # Python and NumPy ask for many, to see what a value is
            raise AttributeError(name)
        raise UnknownAttribute(
            f"a tensor has no attribute '{name}'",
            where=user_span(),
            why=f"'{self.name}' is symbolic: it has shape, dtype, ndim, T, transpose, reshape, pad, clamp and wrap.",
            fix=_INSTEAD.get(name, f"po.{name}(...)" if name in _FUNCTIONS else ""),
            facts={"tensor": self.name, "attribute": name},
        )

    # --- operators --------------------------------------------------------------------------------------------

    def _operate(self, name: str, *operands: object) -> Any:
        return broadcast.elementwise(name, lambda *args: Call(name, args), operands)

    def __matmul__(self, other: object) -> Any:
        return shaping.matmul(self, other)

    def __rmatmul__(self, other: object) -> Any:
        return shaping.matmul(other, self)


def attribute_of_value(value: Expr, name: str) -> Any:
    """An attribute of a value that depends on no index, as of a tensor of rank 0. Raises `UnknownAttribute`."""
    single = broadcast.whole(value) if name in _OWN else value
    if isinstance(single, Tensor):
        return getattr(single, name)
    raise UnknownAttribute(
        f"a single value has no attribute '{name}'",
        where=user_span(),
        why=f"'{source_text(value)}' is one value per point of the indices.",
        fix=_INSTEAD.get(name, f"po.{name}(...)" if name in _FUNCTIONS else "define a tensor for it: y[i] = ..."),
        facts={"attribute": name},
    )


def _updated(target: Expr) -> DefinitionError:
    return DefinitionError(
        f"'{source_text(target)}' is updated by an operation that does not accumulate",
        where=user_span(),
        why="Only +=, -= and *= do. An equation says what a value is, once.",
        fix="define a tensor of its own by the new value: z[i] = y[i] / 2, for example.",
    )


def _accumulates(value: Accumulation | Update, tensor: Tensor, subscripts: tuple[Expr, ...]) -> bool:
    """Whether the value is `tensor[subscripts] + e` of this very statement."""
    target = value.args[0]
    if not isinstance(target, Element) or target.tensor is not tensor or len(target.subscripts) != len(subscripts):
        return False
    return all(_same(a, b) for a, b in zip(target.subscripts, subscripts, strict=True))


def _same(a: Expr, b: Expr) -> bool:
    return a is b or (isinstance(a, Literal) and isinstance(b, Literal) and bool(a.value == b.value))


class BoundedTensor(Operators):
    """A tensor with values outside its box; only its elements can be read."""

    __slots__ = ("boundary", "tensor")

    def __init__(self, tensor: Tensor, boundary: Boundary) -> None:
        self.tensor, self.boundary = tensor, boundary

    def __repr__(self) -> str:
        kind = self.boundary.kind
        return f"{self.tensor.name}.{kind}({self.boundary.value if kind == 'pad' else ''})"

    def _operate(self, name: str, *operands: object) -> Any:
        """Raises `DefinitionError`: what lies outside the box has no end."""
        return [as_expr(operand) for operand in operands]

    def __getitem__(self, key: object) -> Any:
        return subscripts.subscript(self.tensor, key, self.boundary)

    def __iter__(self) -> Any:
        return iter(self.tensor)

    @property
    def shape(self) -> tuple[AffineSize | int, ...]:
        return self.tensor.shape

    @property
    def ndim(self) -> int:
        return self.tensor.ndim

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype
