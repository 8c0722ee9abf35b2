"""Random sums over windows: convolutions of images and filters whose axes lie anyhow, and what comes after them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from random import Random

import numpy as np

from tests.fuzz.exact import MOST_TERMS, Array, Exact, drawn, source

BOUNDARIES = (".pad(0)", ".pad(0)", ".pad(0)", ".pad(2)", ".clamp()", ".wrap()", "")
ENDS = ("", "", "", "relu", "bias", "residual", "start", "then", "twice")
TERMS: Mapping[str, str] = {"h": "r", "w": "s"}
"""The axis of a window, by the axis of the result that it goes along."""
AGAIN: Mapping[str, str] = {"h": "m", "w": "n"}
"""The same in a second window."""


@dataclass(frozen=True, slots=True)
class Walk:
    """How a window goes along a dimension of an image: `stride*place + step*term - before`.

    size:    of the image
    places:  of the result
    terms:   of the window
    skipped: so many first terms of the filters are not read
    spare:   and so many last ones
    """

    size: int
    places: int
    terms: int
    stride: int = 1
    step: int = 1
    before: int = 1
    skipped: int = 0
    spare: int = 0

    @property
    def is_inside(self) -> bool:
        subscripts = self.subscripts()
        return bool(subscripts.min() >= 0 and subscripts.max() < self.size)

    def text(self, place: str, term: str) -> str:
        far, near = (name if by == 1 else f"{by}*{name}" for by, name in ((self.stride, place), (self.step, term)))
        return f"{far} + {near} - {self.before}" if self.before else f"{far} + {near}"

    def subscripts(self) -> Array:
        place, term = np.arange(self.places)[:, None], np.arange(self.terms)
        return np.asarray(self.stride * place + self.step * term - self.before)


@dataclass(frozen=True, slots=True)
class Sum:
    """`z[result] += x[image] * y[filters]`.

    image, filters, result: the letters of their dimensions
    extents: of all letters
    walks:   of the letters of `result` that have windows
    """

    image: str
    filters: str
    result: str
    extents: Mapping[str, int]
    walks: Mapping[str, Walk]
    boundary: str
    terms: Mapping[str, str]

    def read(self, image: str) -> str:
        walks, terms = self.walks, self.terms
        at = (walks[one].text(one, terms[one]) if one in walks else one for one in self.image)
        return f"{image}{self.boundary}[{', '.join(at)}]"

    def chosen(self, filters: str) -> str:
        at = (f"{one} + {self.skipped(one)}" if self.skipped(one) else one for one in self.filters)
        return f"{filters}[{', '.join(at)}]"

    def skipped(self, term: str) -> int:
        return next((walk.skipped for place, walk in self.walks.items() if self.terms[place] == term), 0)

    def spare(self, term: str) -> int:
        return next((walk.spare for place, walk in self.walks.items() if self.terms[place] == term), 0)

    def shapes(self) -> list[tuple[int, ...]]:
        """Of the image and the filters."""
        image = (self.walks[one].size if one in self.walks else self.extents[one] for one in self.image)
        return [tuple(image), tuple(self.extents[one] + self.skipped(one) + self.spare(one) for one in self.filters)]

    def of(self, image: Array, filters: Array) -> Array:
        letters = "".join(one + self.terms[one] if one in self.walks else one for one in self.image)
        kept = filters[tuple(slice(self.skipped(one), self.skipped(one) + self.extents[one]) for one in self.filters)]
        found = np.einsum(f"{letters},{self.filters}->{self.result}", self.windows(image), kept, optimize=True)
        return np.asarray(found)

    def windows(self, image: Array) -> Array:
        """The image with two dimensions, place and term, for each one that a window goes along."""
        for axis in reversed(range(len(self.image))):
            if (walk := self.walks.get(self.image[axis])) is None:
                continue
            at = walk.subscripts()
            seen = np.take(image, at, axis, mode="wrap" if self.boundary == ".wrap()" else "clip")
            if self.boundary.startswith(".pad"):
                is_outside = ((at < 0) | (at >= walk.size)).reshape(*at.shape, *(1,) * (seen.ndim - axis - 2))
                seen = np.where(is_outside, float(self.boundary[5:-1]), seen)
            image = seen
        return image


def window(seed: int, random: Random) -> Exact:
    """A sum over windows, and now and then what makes something of it."""
    while True:
        total = _sum(random)
        is_inside = bool(total.boundary) or all(walk.is_inside for walk in total.walks.values())
        if is_inside and prod(total.extents.values()) <= MOST_TERMS:
            return _with_end(seed, random, total, random.choice(ENDS))


def _sum(random: Random) -> Sum:
    walks = {place: _walk(random) for place in random.choice(("hw", "hw", "hw", "w"))}
    terms = [TERMS[place] for place in walks]
    batch, own = random.choice(("b", "b", "")), random.choice(("o",) * 9 + ("",))
    extents = {
        **{one: random.choice((1, 2, 3, 8)) for one in batch},
        "c": random.choice((1, 3, 8, 16, 33, 64)),
        **{one: random.choice((1, 5, 16, 17, 32, 48, 66)) for one in own},
        **{place: walk.places for place, walk in walks.items()},
        **{TERMS[place]: walk.terms for place, walk in walks.items()},
    }
    image, filters, result = (
        _shuffled(random, (*letters,))
        for letters in ((*batch, "c", *walks), (*own, "c", *terms), (*batch, own or "c", *walks))
    )
    return Sum(image, filters, result, extents, walks, random.choice(BOUNDARIES), TERMS)


def _walk(random: Random) -> Walk:
    size, terms = random.choice((5, 7, 8, 14, 15, 17, 28, 33)), random.choice((1, 2, 3, 3, 3, 5))
    stride, step = random.choice((1, 1, 1, 2)), random.choice((1, 1, 1, 1, 2, -1))
    before = random.choice((0, terms // 2, terms // 2, terms - 1)) * step
    places = random.choice((-(-size // stride), (size - abs(step) * (terms - 1) - 1) // stride + 1, size + 1))
    skipped, spare = random.choice(((0, 0),) * 5 + ((1, 0), (0, 1), (2, 1)))
    return Walk(size, max(1, places), terms, stride, step, before, skipped, spare)


def _shuffled(random: Random, letters: Sequence[str]) -> str:
    return "".join(random.sample(letters, len(letters)) if random.random() < 0.3 else letters)


def _with_end(seed: int, random: Random, total: Sum, end: str) -> Exact:
    """The operator that makes the sum and what comes after it, with its arrays."""
    dtype = random.choice(("f32", "f32", "f32", "f64", "i32", "i8"))
    dtype = dtype if end in ("", "relu") else random.choice(("f32", "f64"))
    result, channel = total.result, "o" if "o" in total.extents else "c"
    place, extents = ", ".join(result), total.extents
    factors = random.sample((total.read("x"), total.chosen("y")), 2)
    declared = [f'z = po.tensor("z", shape=({", ".join(str(extents[one]) for one in result)},))']
    first, added, after = [], [f"z[{place}] += {' * '.join(factors)}"], []
    shapes = total.shapes()
    whole = tuple(extents[one] for one in result)
    again = _again(total, channel) if end == "then" else None
    match end:
        case "relu":
            after = [f"v[{place}] = po.maximum(z[{place}], 0)"]
        case "bias":
            after, shapes = [f"v[{place}] = z[{place}] + u[{channel}]"], [*shapes, (extents[channel],)]
        case "residual":
            after, shapes = [f"v[{place}] = z[{place}] + u[{place}]"], [*shapes, whole]
        case "start":
            first, shapes = [f"z[{place}] = u[{place}]"], [*shapes, whole]
        case "twice":
            declared.append(f'q = po.tensor("q", shape=({", ".join(map(str, whole))},))')
            added.append(f"q[{place}] += {total.read('x')} * {total.chosen('u')}")
            after, shapes = [f"v[{place}] = z[{place}] - q[{place}]"], [*shapes, shapes[1]]
        case "then":
            assert again is not None
            after = [f"v[{', '.join(again.result)}] += {again.read('z')} * {again.chosen('u')}"]
            shapes = [*shapes, again.shapes()[1]]
            extents = {**extents, **again.extents}
    kept = "v" if after else "z"
    body = [
        *(f'{name} = po.index("{name}", extent={extent})' for name, extent in extents.items()),
        *declared,
        *([_tensor(again)] if again else ['v = po.tensor("v")'] if after else []),
        *first, *added, *after,
        f"return {kept}",
    ]  # fmt: skip

    def expected(x: Array, y: Array, u: Array | None = None) -> Array:
        found = total.of(x, y)
        if again is not None and u is not None:
            return again.of(found, u)
        if end == "twice" and u is not None:
            return np.asarray(found - total.of(x, u))
        if end == "bias" and u is not None:
            return found + u.reshape([-1 if one == channel else 1 for one in result])
        if u is not None:
            return found + u
        return np.maximum(found, 0) if end == "relu" else found

    numerics = random.choice(("default", "default", "strict"))
    text = source(dtype, [", ".join(map(str, shape)) for shape in shapes], body, numerics, "xyu")
    special = 1 if dtype in ("f32", "f64") and random.random() < 0.15 else None
    return drawn(seed, random, text, shapes, dtype, expected, 1 if again else 3, special)


def _again(total: Sum, channel: str) -> Sum:
    """A sum over windows of three by three of what a sum makes."""
    walks = {place: Walk(walk.places, walk.places, 3) for place, walk in total.walks.items()}
    extents = {name: total.extents[name] for name in total.result}
    extents |= {"p": 16, **{AGAIN[place]: 3 for place in walks}}
    filters = "".join(("p", channel, *(AGAIN[place] for place in walks)))
    return Sum(total.result, filters, total.result.replace(channel, "p"), extents, walks, ".pad(0)", AGAIN)


def _tensor(total: Sum) -> str:
    return f'v = po.tensor("v", shape=({", ".join(str(total.extents[one]) for one in total.result)},))'
