"""Signatures: what parameters, annotations and defaults mean."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, NewType, Optional, ParamSpec, Union

import numpy as np
import pytest
from numpy.typing import NDArray

import polyopt as po
from polyopt import ArgumentError, DefinitionError, f32, f64, i32
from polyopt.dsl.affine import size
from polyopt.dsl.signature import Signature, read_signature
from tests.dsl.tracing import equations, program

M, N = po.sizes("M N")
i = po.index("i")


def kinds(signature: Signature) -> dict[str, str]:
    return {parameter.name: parameter.kind for parameter in signature.parameters}


def test_annotations_decide_the_kind_of_a_parameter() -> None:
    def op(x: f32[M, N], s: f64[()], a: f32, n: int, fast: bool, eps: float, y: Any, z, w: np.ndarray | None = None):
        return x

    signature = read_signature(op)
    assert kinds(signature) == {
        "x": "tensor",
        "s": "tensor",
        "a": "scalar",
        "n": "constant",
        "fast": "constant",
        "eps": "constant",
        "y": "unannotated",
        "z": "unannotated",
        "w": "unannotated",
    }
    assert signature.parameter("x").dtype == f32 and len(signature.parameter("x").dims) == 2
    assert signature.parameter("s").dims == ()
    assert signature.parameter("w").has_default and not signature.parameter("n").has_default
    assert str(signature).startswith("op(x: f32[M, N], s: f64[()], a: f32, n: int")


def annotated(annotation: object, **default: object) -> Signature:
    """The signature of an op whose second parameter has this annotation."""

    def op(x: f32[N], w):
        return x

    op.__annotations__["w"] = annotation
    op.__defaults__ = tuple(default.values())
    return read_signature(op)


@pytest.mark.parametrize(
    "annotation",
    [Optional[f64[N]], f64[N] | None, None | f64[N], Annotated[f64[N] | None, "a bias"]],  # noqa: UP045  # either form
)
def test_a_tensor_or_none_keeps_its_dtype_and_extents(annotation: object) -> None:
    parameter = annotated(annotation).parameter("w")
    assert (parameter.kind, parameter.dtype, len(parameter.dims), parameter.is_optional) == ("tensor", f64, 1, True)
    assert str(annotated(annotation)) == "op(x: f32[N], w: f64[N] | None)"


@pytest.mark.parametrize("annotation", [f64[N], f64, int])
def test_a_default_of_none_makes_a_parameter_optional(annotation: object) -> None:
    assert annotated(annotation, default=None).parameter("w").is_optional
    assert not annotated(annotation, default=3).parameter("w").is_optional


@pytest.mark.parametrize("annotation", [np.float32, np.dtype("f4"), np.float32 | None])
def test_dtypes_of_numpy_are_run_time_scalars(annotation: object) -> None:
    parameter = annotated(annotation).parameter("w")
    assert (parameter.kind, parameter.dtype) == ("scalar", f32)


@pytest.mark.parametrize(
    "annotation",
    [
        *(Any, object, np.ndarray, NDArray[np.float32], np.ndarray | None, int | float, type[Exception]),
        *(list[int], tuple[int, ...], dict[str, int], Callable[[int], int], Callable[..., Any], Literal["a"]),
        *(typing.Callable, typing.Callable | None, typing.Sequence, typing.Self, tuple[()]),
        *(NewType("Name", int), Callable[ParamSpec("P"), int], np.floating, np.integer | None),
    ],
)
def test_types_of_python_leave_a_parameter_to_its_argument(annotation: object) -> None:
    assert annotated(annotation).parameter("w").kind == "unannotated"


@pytest.mark.parametrize(
    "annotation",
    [N, i, 3, (M, N), np.array([1]), list[f32[N]], Sequence[f32[N]], np.complex64, np.dtype(">f4")],
)
def test_an_annotation_that_no_parameter_can_have_is_refused(annotation: object) -> None:
    with pytest.raises(DefinitionError, match="of 'w' says nothing that a parameter of an op can be") as caught:
        annotated(annotation)
    assert caught.value.facts["parameter"] == "w" and caught.value.where is not None


@pytest.mark.parametrize("make", [lambda: f32 | f64, lambda: f32[N] | f64[N], lambda: np.ndarray | f32[N]])
def test_alternatives_other_than_none_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(DefinitionError, match="cannot be one of f32"):
        make()
    with pytest.raises(DefinitionError, match=r"cannot be one of f32\[N\] and f64\[N\]"):
        annotated(Union[f32[N], f64[N]])  # noqa: UP007  # f32[N] refuses | itself


def test_sizes_may_be_named_by_strings_and_be_affine() -> None:
    def op(x: f32["M", "N"], y: i32[2 * M + 1, 3]) -> object:  # noqa: UP037  # names of sizes
        return x + po.cast(y[0, 0], f32)

    found = program(op)
    assert found.tensor("x").shape == (size("M"), size("N"))
    assert [str(extent) for extent in found.tensor("y").shape or ()] == ["2*M + 1", "3"]


def test_string_annotations_find_the_names_of_the_enclosing_function() -> None:
    rows = po.size("rows")

    def op(x: f32[rows, N]) -> object:
        return x

    assert isinstance(op.__annotations__["x"], str)
    assert str(program(op).tensor("x").shape) == str((size("rows"), size("N")))


def test_an_annotation_that_cannot_be_read_says_which() -> None:
    def op(x: f32[unknown]) -> object:  # the mistake
        return x

    with pytest.raises(DefinitionError, match=r"f32\[unknown\]") as caught:
        read_signature(op)
    assert "unknown" in caught.value.why


@pytest.mark.parametrize("annotation", [f32[i], f32[1.5], f32[True], f32[None], f32["two words"]])
def test_an_extent_that_is_no_size_is_refused(annotation: object) -> None:
    def op(x):
        return x

    op.__annotations__["x"] = annotation
    with pytest.raises(DefinitionError, match="annotation of 'x' is not a size"):
        read_signature(op)


def test_methods_keyword_only_parameters_and_defaults() -> None:
    class Layer:
        scale = 3

        def __call__(self, x: f32[N], *, shift: float = 1) -> object:
            y = po.tensor("y")
            y[i] = self.scale * x[i] + shift
            return y

    signature = read_signature(Layer.__call__)
    assert kinds(signature) == {"self": "constant", "x": "tensor", "shift": "constant"}
    assert signature.parameter("shift").python_kind is inspect.Parameter.KEYWORD_ONLY
    assert equations(Layer.__call__, self=Layer()) == ["y[i] = 3 * x[i] + 1"]


def test_positional_only_parameters() -> None:
    def op(x: f32[N], n: int, /, y: f32[N]) -> object:
        return n * x + y

    assert equations(op, n=2) == ["mul[i] = 2 * x[i]", "add[i] = mul[i] + y[i]"]


def test_starred_parameters_are_refused() -> None:
    def star(*xs: f32[N]) -> object:
        return xs

    def stars(**xs: f32[N]) -> object:
        return xs

    for function, text in ((star, r"\*xs"), (stars, r"\*\*xs")):
        with pytest.raises(DefinitionError, match=f"cannot take {text}"):
            read_signature(function)


@pytest.mark.parametrize(
    ("value", "given"), [(2.5, "2.5, a float"), ([1], "a list"), (True, "True, a bool"), (None, "None")]
)
def test_a_constant_of_another_type_is_refused(value: object, given: str) -> None:
    def op(x: f32[N], n: int) -> object:
        return n * x

    with pytest.raises(ArgumentError) as caught:
        program(op, n=value)
    assert given in caught.value.what and "'n'" in caught.value.what


def test_constants_become_what_they_are_annotated_as() -> None:
    def op(x: i32[N], n: int, a: float) -> object:
        assert type(n) is int and type(a) is float
        return x * n + a

    program(op, n=np.int64(3), a=2)


def test_a_missing_constant_is_refused() -> None:
    def op(x: f32[N], n: int) -> object:
        return n * x

    with pytest.raises(ArgumentError, match="'n' has no value"):
        program(op)
