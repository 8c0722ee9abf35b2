"""Python's operators for symbolic values, and what Python and NumPy ask that has no answer while tracing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from polyopt.dsl.spans import user_span
from polyopt.errors import DefinitionError, DTypeError


class Operators:
    """Python's operators, each handed to `_operate` with the name of the scalar operation."""

    __slots__ = ()
    __hash__ = object.__hash__

    def _operate(self, name: str, *operands: object) -> Any:
        raise NotImplementedError

    def __add__(self, other: object) -> Any:
        return self._operate("add", self, other)

    def __radd__(self, other: object) -> Any:
        return self._operate("add", other, self)

    def __sub__(self, other: object) -> Any:
        return self._operate("sub", self, other)

    def __rsub__(self, other: object) -> Any:
        return self._operate("sub", other, self)

    def __mul__(self, other: object) -> Any:
        return self._operate("mul", self, other)

    def __rmul__(self, other: object) -> Any:
        return self._operate("mul", other, self)

    def __truediv__(self, other: object) -> Any:
        return self._operate("truediv", self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._operate("truediv", other, self)

    def __floordiv__(self, other: object) -> Any:
        return self._operate("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._operate("floordiv", other, self)

    def __mod__(self, other: object) -> Any:
        return self._operate("mod", self, other)

    def __rmod__(self, other: object) -> Any:
        return self._operate("mod", other, self)

    def __pow__(self, other: object) -> Any:
        return self._operate("pow", self, other)

    def __rpow__(self, other: object) -> Any:
        return self._operate("pow", other, self)

    def __and__(self, other: object) -> Any:
        return self._operate("and", self, other)

    def __rand__(self, other: object) -> Any:
        return self._operate("and", other, self)

    def __or__(self, other: object) -> Any:
        return self._operate("or", self, other)

    def __ror__(self, other: object) -> Any:
        return self._operate("or", other, self)

    def __xor__(self, other: object) -> Any:
        return self._operate("xor", self, other)

    def __rxor__(self, other: object) -> Any:
        return self._operate("xor", other, self)

    def __lshift__(self, other: object) -> Any:
        return self._operate("shl", self, other)

    def __rlshift__(self, other: object) -> Any:
        return self._operate("shl", other, self)

    def __rshift__(self, other: object) -> Any:
        return self._operate("shr", self, other)

    def __rrshift__(self, other: object) -> Any:
        return self._operate("shr", other, self)

    def __lt__(self, other: object) -> Any:
        return self._operate("lt", self, other)

    def __le__(self, other: object) -> Any:
        return self._operate("le", self, other)

    def __gt__(self, other: object) -> Any:
        return self._operate("gt", self, other)

    def __ge__(self, other: object) -> Any:
        return self._operate("ge", self, other)

    def __eq__(self, other: object) -> Any:
        return self._operate("eq", self, other)

    def __ne__(self, other: object) -> Any:
        return self._operate("ne", self, other)

    def __neg__(self) -> Any:
        return self._operate("neg", self)

    def __pos__(self) -> Any:
        return self

    def __invert__(self) -> Any:
        return self._operate("not", self)

    def __abs__(self) -> Any:
        return self._operate("abs", self)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: object, **options: object) -> Any:
        """A NumPy scalar or array on the left of an operator; NumPy's functions themselves are refused."""
        name = _UFUNCS.get(ufunc.__name__)
        if name is None or method != "__call__" or options:
            _refuse_numpy(f"np.{ufunc.__name__}")
        result = self._operate(name, *(as_operand(operand) for operand in inputs))
        if result is NotImplemented:
            _refuse_dtypes(inputs)
            raise DefinitionError(
                "a NumPy array meets a symbolic value",
                where=user_span(),
                why="A NumPy array is not part of the equations.",
                fix="make the array a parameter of the op.",
            )
        return result

    def __array__(self, *_: object, **__: object) -> NoReturn:
        _refuse_numpy("NumPy")

    def __array_function__(self, function: Callable[..., object], *_: object) -> NoReturn:
        _refuse_numpy(f"np.{function.__name__}")

    def __bool__(self) -> NoReturn:
        where = user_span()
        called = re.match(r"(max|min)\(", where.text if where else "")
        if called:
            raise DefinitionError(
                f"Python's {called[1]} cannot compare symbolic values",
                where=where,
                why="It asks which is the greater, and that is not known while the equations are read.",
                fix=f"po.{called[1]}imum(a, b) for two values, po.{called[1]}(e, k) over an index, "
                "po.where(c, a, b) to choose.",
            )
        raise DefinitionError(
            "the truth of a condition is not known while the equations are read",
            where=where,
            why="'if', 'and', 'or', 'not' and chained comparisons such as 0 < i < n ask for a truth value.",
            fix="combine conditions with &, | and ~, as in (0 < i) & (i < n); choose with po.where or po.when.",
        )

    def __iter__(self) -> Iterator[NoReturn]:
        raise DefinitionError(
            "a symbolic tensor or value cannot be iterated over",
            where=user_span(),
            fix="write one equation over an index, as in y[i] = f(x[i]).",
        )

    def __len__(self) -> NoReturn:
        raise DefinitionError(
            "the length is not known while the equations are read",
            where=user_span(),
            fix="use x.shape[0], which is a symbolic size; for a Python number take an int parameter.",
        )

    def __float__(self) -> NoReturn:
        _refuse_number("float")

    def __int__(self) -> NoReturn:
        _refuse_number("int")

    def __index__(self) -> NoReturn:
        _refuse_number("int", _ABOUT_TUPLES)


_ABOUT_TUPLES = " po.tensors, po.sizes and po.indices give tuples, even of one: po.tensor('y') gives a tensor."

_UFUNCS = {"add": "add", "subtract": "sub", "multiply": "mul", "divide": "truediv", "floor_divide": "floordiv"} | {
    "remainder": "mod", "power": "pow", "bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor",
    "left_shift": "shl", "right_shift": "shr", "less": "lt", "less_equal": "le", "greater": "gt",
    "greater_equal": "ge", "equal": "eq", "not_equal": "ne",
}  # fmt: skip


def as_operand(operand: object) -> object:
    """An operand as NumPy hands it over: scalars come wrapped in arrays of rank 0."""
    return operand[()] if isinstance(operand, np.ndarray) and operand.ndim == 0 else operand


def _refuse_dtypes(operands: Sequence[object]) -> None:
    """Raises `DTypeError` for a single value of NumPy that no dtype holds: complex numbers, dates."""
    for operand in operands:
        if isinstance(operand, np.generic | np.ndarray) and operand.ndim == 0 and operand.dtype.kind not in "biufV":
            raise DTypeError(
                f"a value of dtype {operand.dtype} meets a symbolic value",
                where=user_span(),
                why="There are no complex numbers and no dates in equations.",
                fix="compute with its parts: .real and .imag, or numbers of days or seconds.",
                facts={"dtype": str(operand.dtype)},
            )


def _refuse_numpy(name: str) -> NoReturn:
    raise DefinitionError(
        f"{name} cannot work on a symbolic value",
        where=user_span(),
        why="NumPy works on arrays of numbers, and there are none while the equations are read.",
        fix="use polyopt's functions (po.exp, po.sum, ...), and make an array of numbers a parameter of the op.",
        facts={"function": name},
    )


def _refuse_number(kind: str, more: str = "") -> NoReturn:
    raise DefinitionError(
        "a symbolic value has no number while the equations are read",
        where=user_span(),
        why=f"Something here (range, math, the index of a list or tuple, ...) asked for a Python {kind}.",
        fix="use po.cast and po functions for values; a parameter annotated int is a compile-time Python number."
        + more,
    )
