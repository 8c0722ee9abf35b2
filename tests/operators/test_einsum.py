"""`po.einsum` outside an op gives what `numpy.einsum` gives: values, shape, dtype, and a new array."""

from __future__ import annotations

from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

import polyopt as po

EXTENTS = dict(zip("abcdefghijklmnopqrstuvwxyzABC", [2, 3, 4, 5, 3, 2] * 5, strict=False))
ELLIPSIS = (2, 3)
"""What an ellipsis stands for."""

DOCUMENTED = (
    # the forms on numpy.einsum's page
    "ii",
    "ii->i",
    "ij->i",
    "ij->j",
    "ij->",
    "ij",
    "ji",
    "i->",
    "i",
    "...j->...",
    "i...->...",
    "...ij->...ji",
    "...ii->...i",
    "i,i",
    "i,i->",
    "i,i->i",
    "ij,j",
    "ij,j->i",
    "...j,j",
    "..., ...",
    ",ij",
    "i,ij",
    "ij,",
    "i,j",
    "i,j->ij",
    "i,j->ji",
    "ij,jk",
    "ij,jk->ik",
    "ij , jk -> ik",
    "ik,kj",
    "ijk,jil->kl",
    "ki,jk->ij",
    "ki,...k->i...",
    "k...,jk",
    "i...,i...",
    "...i,...i->...",
    "ij...,jk...->ik...",
    "...,...->...",
    "ijk,ilm,njm,nlk,abc->",
    "bca,cdb,dbf,afc->",
)

MATRIX_PRODUCTS = tuple(f"{x},{y}->{z}" for x, y, z in product(("ij", "ji"), ("jk", "kj"), ("ik", "ki")))
BATCHED = tuple(
    f"{x},{y}->{z}" for x, y, z in product(("bij", "ibj", "ijb"), ("bjk", "jbk", "jkb"), ("bik", "ibk", "ikb"))
)
TRANSPOSES = tuple(f"{term}->{''.join(p)}" for term in ("abc", "abcd") for p in permutations(term))
SUMS = tuple(f"abcd->{''.join(kept)}" for rank in range(4) for kept in combinations("abcd", rank))
DIAGONALS = """
    aa-> aa->a aaa-> aaa->a aab->ab aab->ba aba->ab aba->a baa->ab aabb->ab abab->ab abba->ba aab,b->a aa,aa->a
    aa,a-> aab,ab->b ii,jj->ij iij,jjk->ik iji->j ijij-> iijj
"""
ELEMENTWISE = """
    a,a->a ab,ab->ab ab,ba->ab ab,b->ab ab,a->ab a,b->ab ab,cd->abcd ab,cd->cbad a,b,c->abc a,b,c,d->dcba
    ab,ab,ab->ab ab,a,b->ab ab,a,b-> a,,b->ab ,-> ,,-> a,->a ab,ab-> ab,ba->
"""
NETWORKS = """
    ij,jk,kl->il ij,jk,kl,lm->im ij,jk,kl,lm,mn->in ab,bc,ca-> ab,bc,cd,da-> i,ij,j-> ij,kj->ik ijk,jl,kl->il
    ijk,jr,kr->ir ijk,ir,kr->jr ijk,ir,jr->kr ijkl,jr,kr,lr->ir ijk,rj->irk ijk,ri->rjk ijk,rk->ijr
    abc,ia,jb,kc->ijk ai,bi,ci->abc bi,kij,bj->bk bhid,bhjd->bhij bhij,bhjd->bhid bid,dhk->bhik nchw,oc->nohw
    nhwpqc,opqc->nhwo ijab,abkl->ijkl ijab,klab->ijkl iajb,abkl->ijkl ab,cb,cd,ad->ac pq,pi,qj->ij
    pqrs,pi,qj,rk,sl->ijkl i,i,i->i i,i,i-> ij,ij,jk->ik ij,jk,ik-> abc,bcd,cda-> ab,ab,c-> abcd,cd->ab
    abcd,ab->cd abcd,bc->ad abcd,badc-> xyz,y->xz
"""
ELLIPSES = """
    ...ij,...jk->...ik ...ij,jk->...ik ij,...jk->...ik ...i,...j->...ij ...i->... ...->... a...->...a ...a->a...
    a...b->b...a a...b->...ab ...ab,...b->...a b...i,b...i->b... ...ij,...ij->... ...ij->...j i...,j...->ij...
    ...,i->i... i,...->... ...i,i ab...,ba...->... ...aa->...
"""
IMPLICIT = """
    ba bca ba,cb ab,bc,cd cab kij,jl zyx bab a,b,a ab,ab ab,ba dcba ...ba b...a ij,kj ijj jii iij,k Ba aB,Bc
"""

WRITTEN = " ".join((DIAGONALS, ELEMENTWISE, NETWORKS, ELLIPSES, IMPLICIT))
SPECIFICATIONS = tuple(dict.fromkeys((*DOCUMENTED, *MATRIX_PRODUCTS, *BATCHED, *TRANSPOSES, *SUMS, *WRITTEN.split())))


def operands(spec: str, dtype: Any = np.float64) -> list[np.ndarray]:
    """Small integers in the given dtype, so that every order of contraction gives the same bits."""
    random = np.random.default_rng(len(spec))
    terms = spec.replace(" ", "").split("->")[0].split(",")
    return [random.integers(0, 4, shape_of(term)).astype(dtype) for term in terms]


def shape_of(term: str) -> tuple[int, ...]:
    before, dots, after = term.partition("...")
    return (
        *(EXTENTS[letter] for letter in before),
        *(ELLIPSIS if dots else ()),
        *(EXTENTS[letter] for letter in after),
    )


def assert_same(got: Any, want: Any) -> None:
    assert isinstance(got, np.ndarray)
    assert got.shape == np.shape(want) and got.dtype == np.asarray(want).dtype
    np.testing.assert_array_equal(got, want)


def test_there_are_two_hundred_specifications() -> None:
    assert len(SPECIFICATIONS) >= 200


@pytest.mark.parametrize("spec", SPECIFICATIONS)
def test_gives_what_numpy_gives(spec: str) -> None:
    arrays = operands(spec)
    got = po.einsum(spec, *arrays)
    assert_same(got, np.einsum(spec, *arrays))
    assert not any(np.shares_memory(got, array) for array in arrays)


@pytest.mark.parametrize("dtype", ["?", "i1", "u1", "i2", "i4", "i8", "u8", "f2", "f4", "f8"])
@pytest.mark.parametrize("spec", ["ij,jk->ik", "ij->i", "ii->i", "ij,ij->", "ij->ji"])
def test_keeps_numpys_dtype(spec: str, dtype: str) -> None:
    arrays = operands(spec, dtype)
    assert_same(po.einsum(spec, *arrays), np.einsum(spec, *arrays))


@pytest.mark.parametrize("left, right", [("i4", "f8"), ("f4", "f8"), ("u1", "i1"), ("i8", "f4"), ("?", "i2")])
def test_mixes_dtypes_as_numpy_does(left: str, right: str) -> None:
    x, y = operands("ij,jk->ik", left)[0], operands("ij,jk->ik", right)[1]
    assert_same(po.einsum("ij,jk->ik", x, y), np.einsum("ij,jk->ik", x, y))


def test_takes_the_sublist_form() -> None:
    x, y = operands("ij,jk->ik")
    assert_same(po.einsum(x, [0, 1], y, [1, 2]), np.einsum(x, [0, 1], y, [1, 2]))
    assert_same(po.einsum(x, [0, 1], y, [1, 2], [2, 0]), np.einsum(x, [0, 1], y, [1, 2], [2, 0]))
    assert_same(po.einsum(x, [..., 0], [0, ...]), np.einsum(x, [..., 0], [0, ...]))


@pytest.mark.parametrize("optimize", [False, True, "greedy", "optimal"])
def test_accepts_optimize(optimize: bool | str) -> None:
    arrays = operands("ij,jk,kl->il")
    assert_same(po.einsum("ij,jk,kl->il", *arrays, optimize=optimize), np.einsum("ij,jk,kl->il", *arrays))


def test_writes_into_out_and_returns_it() -> None:
    x, y = operands("ij,jk->ik")
    out = np.empty((EXTENTS["i"], EXTENTS["k"]))
    assert po.einsum("ij,jk->ik", x, y, out=out) is out
    assert_same(out, np.einsum("ij,jk->ik", x, y))


def test_takes_dtype_order_and_casting() -> None:
    x, y = operands("ij,jk->ik", "f4")
    assert_same(po.einsum("ij,jk->ik", x, y, dtype="f8"), np.einsum("ij,jk->ik", x, y, dtype="f8"))
    assert po.einsum("ij,jk->ik", x, y, order="F").flags.f_contiguous
    unsafe: dict[str, Any] = {"dtype": "i4", "casting": "unsafe"}
    assert_same(po.einsum("ij,jk->ik", x, y, **unsafe), np.einsum("ij,jk->ik", x, y, **unsafe))


def test_repeats_extents_of_one() -> None:
    x, y = np.ones((3, 1)), np.arange(20.0).reshape(4, 5)
    assert_same(po.einsum("ij,jk->ik", x, y), np.einsum("ij,jk->ik", x, y))
    assert_same(po.einsum("...i,...i->...i", x, y[:3]), np.einsum("...i,...i->...i", x, y[:3]))


@pytest.mark.parametrize("view", [lambda x: x.T, lambda x: x[::-1, ::-2], lambda x: np.broadcast_to(x[:1], (4, 4))])
def test_takes_any_strides(view: Any) -> None:
    x = view(np.arange(16.0).reshape(4, 4))
    assert_same(po.einsum("ij,kj->ik", x, x), np.einsum("ij,kj->ik", x, x))


def test_takes_empty_arrays_and_scalars() -> None:
    x = np.ones((0, 3))
    assert_same(po.einsum("ij->j", x), np.einsum("ij->j", x))
    assert_same(po.einsum("ij,kj->ik", x, x), np.einsum("ij,kj->ik", x, x))
    assert float(po.einsum(",", 2.0, 3.0)) == 6.0


@pytest.mark.parametrize("dtype", [np.complex128, np.longdouble, object])
def test_refuses_what_it_has_no_dtype_for(dtype: Any) -> None:
    with pytest.raises(po.DTypeError):
        po.einsum("ij,jk->ik", np.ones((2, 2), dtype), np.ones((2, 2), dtype))


@pytest.mark.parametrize("spec", ["ij,jk", "ij->k", "i", "ij,->ii", "i$->i", "ij->->i", "ij......->"])
def test_refuses_what_numpy_refuses(spec: str) -> None:
    x = np.ones((2, 3))
    with pytest.raises(ValueError):
        np.einsum(spec, x)
    with pytest.raises((po.PolyoptError, ValueError)):
        po.einsum(spec, x)
