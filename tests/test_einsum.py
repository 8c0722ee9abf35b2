"""`po.einsum` outside an op against numpy.einsum."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import polyopt as po
from polyopt.contraction import Product, extents, plan
from polyopt.dsl.einsum import parse
from polyopt.errors import ArgumentError, DTypeError, ShapeError

SIZES = {letter: 2 + n % 4 for n, letter in enumerate("abcdefghijklmnopqrstuvwxyz")}

# Everything NumPy's documentation of einsum shows, and the families that operators are made of.
SPECIFICATIONS = """
ii | ii-> | ii->i | ij->i | ij->j | ij-> | ij->ij | ij->ji | ij | ji | i->i | i-> | i | iij->j | iij->ij | iji->j
iii->i | iii | iijj->ij | iijj | ijij->ji | ijk->kji | ijk->ik | ijk->j | kji | ba | abc->b | abcd->dbca
i,i | i,i-> | i,i->i | i,j | i,j->ij | i,j->ji | i,j->j | ij,j | ij,j->i | ij,i->j | ij,j->ij | j,ij->ij | ij,ij
ij,ij->ij | ij,ji-> | ij,ij->i | ij,ij-> | ij,jk | ij,jk->ik | ij,jk->ki | ij,kj->ik | ji,jk->ik | ji,kj->ik
ij,jk->k | ij,jk-> | ij,jk->ijk | ij,jk->j | ij,kl | ij,kl->ijkl | ij,kl->ilkj | ii,i->i | ii,ij->j | ii,jj->ij
ii,jj | ij,ii->j | bij,bjk->bik | bij,jk->bik | ij,bjk->bik | bij,bkj->bik | bij,bij->b | bij,bjk->ik | bi,bj->bij
abij,abjk->abik | ijk,jil->kl | ijk,jkl->il | ijk,kl->ijl | ijk,jil | ijk,ijk-> | ijk,k->ij | ijk,i->jk | ijk,j->ik
ijkl,kl->ij | ijkl,jilm->km | abcd,bd->ac | abc,cd->abd | abc,bd->acd | abc,ad->bcd | abc,abd->cd | abcd,cdef->abef
ik,jkl,il->ij | ijk,jl,kl->il | ab,bc,cd->ad | ab,bc,cd | ab,bc,ca-> | ab,bc,cd,de->ae | i,j,k->ijk | i,i,i | ij,i,j
i,ij,j-> | i,ij,jk,k-> | ab,cb,cd->ad | abc,ab,c->b | ij,jk,ik-> | ij,jk,ki->i | a,ab,abc->abc | a,ab,abc->c
ea,fb,abcd,gc,hd->efgh | bc,ad,abcd->da | ab,cd,ef->abcdef | ab,ab,c->c | ijk,il,jm,kn->lmn | ijkl,ia,jb,kc,ld->abcd
bhqd,bhkd->bhqk | bhqk,bhkd->bhqd | bqhd,bkhd->bhqk | bsd,dhk->bshk | ncuv,kc->nkuv | nchw,kc->nkhw | gij,gjk->gik
ijkl->lkji | ijk,ij->k | ij,ijk,k | ijk,klm->ijlm | ijk,ikl->ijl | ijkl->ik
aabb->ab | aab->b | ai,bi,ci->abc | ai,bj,ck,ijk->abc | ia,ib,ic,id->abcd | t,td,de->e
...i->... | ...i,...i->... | ...ij->...ji | ...ii->...i | i...->... | i...->i... | ...ij,...jk->...ik | ...->...
...ij,jk->...ik | ij...,jk...->ik... | i...,i... | ij...,j...->ij... | ...ab,...bc | k...,jk | ki,...k->i... | ...,...
i...,...->... | ...i,i | ...,i->...i | i,...->i... | ... | ...i
"""
SYSTEMATIC = [
    f"{left},{right}{output}"
    for left in ("ij", "ijk")
    for right in ("jk", "kj", "ki", "jl", "kl", "ijk", "kji")
    for output in ("", "->", "->i", "->ji")
]
CASES = list(
    dict.fromkeys([*(s for s in map(str.strip, SPECIFICATIONS.replace("\n", "|").split("|")) if s), *SYSTEMATIC])
)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20)


def operands(spec: str, rng: np.random.Generator, dtype: str = "f8", extra: tuple[int, ...] = (2, 3)) -> list[Any]:
    """Random arrays that fit a specification; an ellipsis stands for dimensions of `extra`."""
    arrays = []
    for term in spec.partition("->")[0].split(","):
        head, dots, tail = term.partition("...")
        shape = [*(SIZES[x] for x in head), *(extra if dots else ()), *(SIZES[x] for x in tail)]
        arrays.append((rng.standard_normal(shape) * 4).astype(dtype))
    return arrays


def agree(found: Any, expected: Any, dtype: str = "f8") -> None:
    expected = np.asarray(expected)
    assert isinstance(found, np.ndarray)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    tolerance = {"f2": 2e-2, "f4": 1e-5}.get(dtype, 1e-12)
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance * 100)


@pytest.mark.parametrize("spec", CASES)
def test_it_gives_what_numpy_gives(spec: str, rng: np.random.Generator) -> None:
    arrays = operands(spec, rng)
    agree(po.einsum(spec, *arrays), np.einsum(spec, *arrays))


def test_there_are_enough_cases() -> None:
    assert len(CASES) >= 200


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ii->i", "ij->", "i,ij,j->", "...i,i"])
def test_every_dtype_keeps_its_own(spec: str, dtype: str, rng: np.random.Generator) -> None:
    arrays = operands(spec, rng, dtype)
    agree(po.einsum(spec, *arrays), np.einsum(spec, *arrays), dtype)


@pytest.mark.parametrize(
    ("left", "right"), list(itertools.product(["?", "i1", "u2", "i8", "f2", "f4", "f8"], repeat=2))
)
def test_mixed_dtypes_promote_as_in_numpy(left: str, right: str, rng: np.random.Generator) -> None:
    a, b = operands("ij", rng, left)[0], operands("jk", rng, right)[0]
    expected = np.einsum("ij,jk->ik", a, b)
    agree(po.einsum("ij,jk->ik", a, b), expected, expected.dtype.str[1:])


def test_narrow_integers_wrap() -> None:
    a = np.full((3, 7), 100, np.int8)
    agree(po.einsum("ij,kj->ik", a, a), np.einsum("ij,kj->ik", a, a))


A, B = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
SUBLISTS: list[tuple[Any, ...]] = [
    (A, [0, 1], B, [1, 2], [0, 2]),
    (A, [0, 1], B, [1, 2]),
    (A, [1, 0]),
    (A, [0, 1], [1, 0]),
    (A, [Ellipsis, 1], B, [1, 2], [Ellipsis, 2]),
    (A, [51, 3], [3]),
    (A, [0, 1], []),
]


@pytest.mark.parametrize("arguments", SUBLISTS, ids=range(len(SUBLISTS)))
def test_the_sublist_form(arguments: tuple[Any, ...]) -> None:
    agree(po.einsum(*arguments), np.einsum(*arguments))


@pytest.mark.parametrize(
    "spec", ["ij,ij->ij", "ij,ij", "ij,jk->ik", "i,i->i", "...ij,...ij->...ij", "ij,kj->ik", "ij,jk,kl->il"]
)
@pytest.mark.parametrize("which", [0, 1])
def test_extents_of_one_are_repeated(spec: str, which: int, rng: np.random.Generator) -> None:
    arrays = operands(spec, rng)
    arrays[which] = arrays[which][..., :1]
    agree(po.einsum(spec, *arrays), np.einsum(spec, *arrays))


@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij->", "ij->i", "i,i"])
@pytest.mark.parametrize("extent", [0, 1, 2, 17, 64])
def test_extents_from_none_to_many(spec: str, extent: int, rng: np.random.Generator) -> None:
    arrays = [rng.standard_normal((extent,) * len(term)) for term in spec.partition("->")[0].split(",")]
    agree(po.einsum(spec, *arrays), np.einsum(spec, *arrays))


def test_scalars_lists_and_strides() -> None:
    x = np.arange(24.0).reshape(4, 6)
    agree(po.einsum(",ij", 3, x), np.einsum(",ij", 3, x))
    agree(po.einsum("i,i", [1, 2], [3, 4]), np.einsum("i,i", [1, 2], [3, 4]))
    agree(po.einsum("ij,jk", x[::-1, ::2], x.T[:3]), np.einsum("ij,jk", x[::-1, ::2], x.T[:3]))
    agree(po.einsum(" i j , j k -> i k ", x.T, x), np.einsum("ij,jk->ik", x.T, x))


@pytest.mark.parametrize("optimize", [True, False, "greedy", "optimal", ["einsum_path", (0, 1), (0, 1)]])
def test_optimize_is_accepted(optimize: Any, rng: np.random.Generator) -> None:
    arrays = operands("ij,jk,kl->il", rng)
    agree(po.einsum("ij,jk,kl->il", *arrays, optimize=optimize), np.einsum("ij,jk,kl->il", *arrays))


def test_the_result_is_always_a_new_array() -> None:
    x = np.ones((3, 3))
    assert not np.shares_memory(po.einsum("ij->ji", x), x)
    assert not np.shares_memory(po.einsum("ii->i", x), x)


def test_out_is_filled_and_returned() -> None:
    out = np.zeros((2, 4))
    assert po.einsum("ij,jk->ik", A, B, out=out) is out
    np.testing.assert_allclose(out, A @ B)
    square = np.arange(9.0).reshape(3, 3)
    expected = square @ square
    po.einsum("ij,jk->ik", square, square, out=square)
    np.testing.assert_allclose(square, expected)
    wide = np.zeros((2, 4))
    po.einsum("ij,jk->ik", A.astype("f4"), B.astype("f4"), out=wide)
    np.testing.assert_allclose(wide, A @ B)


def test_dtype_and_casting() -> None:
    agree(po.einsum("ij->", A.astype("i4"), dtype="f8"), np.einsum("ij->", A.astype("i4"), dtype="f8"))
    found = po.einsum("ij,jk", A, B, dtype="f4", casting="same_kind")
    agree(found, np.einsum("ij,jk", A, B, dtype="f4", casting="same_kind"), "f4")
    with pytest.raises(DTypeError):
        po.einsum("ij,jk", A, B, dtype="f4")
    with pytest.raises(DTypeError):
        po.einsum("ij,jk", A, B, out=np.zeros((2, 4), "f4"))


@pytest.mark.parametrize("order", ["C", "F", "A", "K"])
def test_order(order: Any) -> None:
    for left, right in ((A, B), (np.asfortranarray(A), np.asfortranarray(B))):
        found, expected = (e("ij,jk->ik", left, right, order=order) for e in (po.einsum, np.einsum))
        agree(found, expected)
        if order != "K":
            assert found.flags.f_contiguous == expected.flags.f_contiguous


BAD: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception]]] = [
    ((), {}, ArgumentError),
    (("ij",), {}, ArgumentError),
    ((3,), {}, ArgumentError),
    (("ij,jk", A), {}, ArgumentError),
    (("i", A), {}, ArgumentError),
    (("ijk", A), {}, ArgumentError),
    (("ij->ijj", A), {}, ArgumentError),
    (("ij->ik", A), {}, ArgumentError),
    (("i.j", A), {}, ArgumentError),
    (("i1", A), {}, ArgumentError),
    (("...i->i", A), {}, ArgumentError),
    (("......i", A), {}, ArgumentError),
    ((A, [0, 60]), {}, ArgumentError),
    (("ii", A), {}, ShapeError),
    (("ij,jk", A, A), {}, ShapeError),
    (("ij", A), {"order": "X"}, ArgumentError),
    (("ij", A), {"casting": "never"}, ArgumentError),
    (("ij", A.astype(complex)), {}, DTypeError),
    (("ij", A.astype(object)), {}, DTypeError),
    (("ij", A.astype(np.longdouble)), {}, DTypeError),
    (("ij", A), {"out": np.zeros((3, 3))}, ShapeError),
]


@pytest.mark.parametrize(("arguments", "options", "error"), BAD, ids=range(len(BAD)))
def test_what_does_not_fit_is_refused(arguments: Any, options: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        po.einsum(*arguments, **options)


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        ("ij->k", "'k' is in the output"),
        ("ij->ii", "A label is in the output twice"),
        ("i...j...", "An ellipsis is three dots, and stands once in an operand"),
        ("i", "Operand 0 has 2 dimensions and 1 label."),
        ("ij,jk", "It names 2 operands and is given 1"),
    ],
)
def test_a_refused_specification_is_shown_whole(spec: str, says: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        po.einsum(spec, A)
    assert caught.value.facts["specification"] == spec and f"'{spec}'" in caught.value.what
    assert says in caught.value.why


def test_a_chain_is_multiplied_in_the_cheap_order() -> None:
    shapes = [(2, 100), (100, 100), (100, 1)]
    _, subscripts = parse(("ab,bc,cd->ad", *shapes), len)  # type: ignore[arg-type]  # a shape has a rank as well
    whole = plan(subscripts, extents(subscripts, shapes))
    assert whole.parts == (0, Product((1, 2), ("b", "d")))


def test_a_label_of_one_operand_is_summed_first() -> None:
    _, subscripts = parse(("ij,jk->k", (1, 2), (3, 4)), len)  # type: ignore[arg-type]  # as above
    whole = plan(subscripts, {"i": 5, "j": 6, "k": 7})
    assert whole == Product((Product((0,), ("j",)), 1), ("k",))


def test_torch_tensors_give_a_torch_tensor() -> None:
    torch = pytest.importorskip("torch")
    a, b = torch.ones(2, 3), torch.ones(3, 4)
    found = po.einsum("ij,jk->ik", a, b)
    assert isinstance(found, torch.Tensor)
    assert torch.equal(found, torch.full((2, 4), 3.0))


def test_operands_are_cast_before_they_meet() -> None:
    """In the wider dtype of a sum 0.5 was 0, and so false; 2**32 had no bits left, and 100000 no overflow."""
    cases: tuple[Any, ...] = (
        ("i,i->i", ([0.5, 0.0, np.nan, -0.3], [1.0, 1.0, 1.0, 1.0]), bool),
        ("i,i->i", ([2**32, 256], [1, 1]), bool),
        ("i->", ([0.5],), bool),
        ("i,i->i", ([100000.0], [0.5]), "f2"),
    )
    for spec, arrays, dtype in cases:
        operands = [np.array(values) for values in arrays]
        with np.errstate(over="ignore"):
            want = np.einsum(spec, *operands, dtype=dtype, casting="unsafe")
        got = po.einsum(spec, *operands, dtype=np.dtype(dtype), casting="unsafe")
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    ("spec", "operands", "dtype"),
    [
        ("i,i", (np.full(4, 100, np.int8),) * 2, np.int64),
        ("i,i->i", (np.full(4, 100, np.int8),) * 2, np.float64),
        ("i->", (np.full(5, 60000, np.float16),), np.float32),
        ("i,i", (np.full(5, 60000, np.float16),) * 2, np.float32),
        ("i->", (np.array([True] * 3),), np.int64),
    ],
)
def test_einsum_computes_in_the_dtype_of_a_wider_out(spec: str, operands: Any, dtype: Any) -> None:
    shape = np.einsum(spec, *operands).shape
    found, wanted = np.zeros(shape, dtype), np.zeros(shape, dtype)
    np.einsum(spec, *operands, out=wanted)
    assert po.einsum(spec, *operands, out=found) is found
    np.testing.assert_array_equal(found, wanted)


def test_plain_calls_again_are_not_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each took 130 microseconds where it takes 8."""
    from polyopt.dsl import einsum as symbolic

    x, y = np.arange(12.0).reshape(3, 4), np.arange(20.0).reshape(4, 5)
    results = po.einsum("ij,jk->ik", x, y), po.einsum("ij->", x)
    monkeypatch.setattr(symbolic, "parse", lambda *_: pytest.fail("the call was read again"))
    np.testing.assert_array_equal(po.einsum("ij,jk->ik", x, y), results[0])
    np.testing.assert_array_equal(po.einsum("ij,jk->ik", x[::-1], y[:, ::-1], optimize=True), x[::-1] @ y[:, ::-1])
    total = po.einsum("ij->", x)
    assert type(total) is type(results[1]) and total == results[1] == 66
    for other in (x.astype(np.float32), x[:2], np.ma.masked_array(x), x.tolist()):
        with pytest.raises(pytest.fail.Exception):
            po.einsum("ij->", other)
