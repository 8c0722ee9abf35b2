"""Draws random operators with a call: sizes, dtypes, layouts, targets, threads and options included."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from importlib.util import find_spec
from itertools import count
from random import Random

from polyopt.fuzz.arrays import LAYOUTS, SCALARS, WRITABLE_LAYOUTS
from polyopt.fuzz.case import INDICES, Case, Parameter, extent_of
from polyopt.fuzz.definitions import SHAPES, Author
from polyopt.fuzz.expressions import EXACT_FUNCTIONS, FLOATS, FUNCTIONS, Known, Writer
from polyopt.target import ANY_GPU, GPU_PRESETS

EXTENTS = (0, 1, 2, 3, 3, 4, 5, 5, 7, 8, 9, 15, 16, 17, 31, 33)
LARGE_EXTENTS = (32, 40, 63, 65, 100, 129)
"""Enough for several tiles along an axis, and for copies of what tiles read."""
LABELLED = 0.3
"""Share of operators whose indices are called as axes of the compiler's."""
ENDINGS = ("_0", "_1", "_2", "_part", "_copy", "_block", "_tile", "_lane", "_wide0", "_panel", "_i", "_j", "_k")
PLANS = 4
"""Plans drawn for each operator."""
GPU_SHARE = 0.04
"""Of the cases of a campaign; the emulator's compiler takes about a second for each."""
PRINTED_SHARE = 0.05
"""Of the others but the rough ones, whose functions are those of the C library in printed C."""
ROUGH_SHARE = 0.4
MOST_TERMS = 10_000_000
"""Of a case, else another is drawn: on a busy machine the reference takes two microseconds for one, twice, and a case
has a minute."""
GPU_EXTENT = 33
"""The greatest size of a case for a GPU: the emulator runs one thread after another."""
_INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def random_case(seed: int, *, rough: bool = False, functions: tuple[str, ...] = FUNCTIONS) -> Case:
    """The case of a seed; the same on every run.

    rough: with floats of any kind, `functions`, scalars and dtypes that meet as they are, in strict numerics
    """
    random = Random(seed)
    drawn = (_drawn(seed, random, rough, functions) for _ in count())
    return next(case for case in drawn if terms(case) <= MOST_TERMS)


def terms(case: Case) -> int:
    """At most how often the equations of a case are evaluated, with one evaluation for each step of all their sums."""
    sizes = dict(case.sizes)
    extents = {name: extent_of(dim, sizes) for dim, names in INDICES.items() for name in names}
    texts = (equation.text("") for definition in case.definitions for equation in definition.equations)
    return sum(math.prod(extents.get(name, 1) for name in set(re.findall(r"\b[a-z]+\b", text))) for text in texts)


def _drawn(seed: int, random: Random, rough: bool, functions: tuple[str, ...]) -> Case:
    is_large = random.random() < 0.1
    sizes = _sizes(random, is_large=is_large)
    writer = Writer(random, {**sizes, "T": random.randint(1, 4)}, _dtypes(random), rough=rough, functions=functions)
    parameters = _parameters(writer)
    author = Author(writer, 1 if is_large else random.choice((1, 1, 2, 2, 3)), is_large)
    for _ in range(random.choice((1, 2, 2, 3, 3, 4, 5))):
        author.define()
    names = [definition.name for definition in author.definitions]
    kept = {names[-1], *random.sample(names, random.randint(0, min(2, len(names))))}
    return Case(
        seed,
        tuple(writer.sizes.items()),
        parameters,
        tuple(author.definitions),
        tuple(name for name in names if name in kept),
        random.random() < 0.9,
        _strict(_options(random)) if rough else _options(random),
        random.choice((1, 2)),
        random.choice((None, None, None, "input", "overlap", *WRITABLE_LAYOUTS)),
        tuple(random.randrange(1 << 16) for _ in range(PLANS)),
    )


def campaign_case(seed: int) -> Case:
    """The case of a seed in a campaign: a share is rough, one of the small ones for a GPU, and one printed as C."""
    for_gpu = Random(f"gpu {seed}").random() < GPU_SHARE
    is_rough = Random(f"rough {seed}").random() < ROUGH_SHARE
    case = random_case(seed, rough=is_rough, functions=EXACT_FUNCTIONS if for_gpu else FUNCTIONS)
    case = replace(case, labels=_labels(Random(f"labels {seed}")), others=_others(case))
    if for_gpu and is_small(case):
        return on_gpu(case)
    return replace(case, printed=not is_rough and Random(f"printed {seed}").random() < PRINTED_SHARE)


def _labels(random: Random) -> tuple[tuple[str, str], ...]:
    """Now and then indices are called as the compiler would call axes of its own."""
    if random.random() >= LABELLED:
        return ()
    names = [first + ending for first, _ in INDICES.values() for ending in ENDINGS]
    return tuple(zip((second for _, second in INDICES.values()), random.sample(names, len(INDICES)), strict=True))


def _others(case: Case) -> tuple[tuple[str, int], ...]:
    """Sizes of another call of a kernel for many, none greater: bounds of sums rest on them."""
    random, dynamic = Random(f"others {case.seed}"), dict(case.options).get("dynamic", "")
    sizes = [(name, size) for name, size in case.sizes if dynamic == "True" or f'"{name}"' in dynamic]
    return tuple((name, random.choice((size, size // 2, random.randint(0, size)))) for name, size in sizes)


def is_small(case: Case) -> bool:
    """Whether the emulator runs the case in little time."""
    return max(size for _, size in case.sizes) <= GPU_EXTENT


def on_gpu(case: Case) -> Case:
    """The case with a GPU for its target, where no plans for a processor are drawn.

    Most have few multiprocessors: small cases fill them, and get the tiles and rows that large ones have.
    """
    random = Random(f"target {case.seed}")
    name, sms = random.choice((ANY_GPU, ANY_GPU, *GPU_PRESETS)), random.choice((None, 1, 1, 2, 4))
    options = {**dict(case.options), "target": f'gpu_preset("{name}"{"" if sms is None else f", sms={sms}"})'}
    return replace(case, options=tuple(options.items()), plans=(), gpu=True)


def _sizes(random: Random, *, is_large: bool) -> dict[str, int]:
    if is_large:
        return {name: random.choice(LARGE_EXTENTS) for name in ("M", "N", "K")}
    sizes = {name: random.choice(EXTENTS[1:] if random.random() < 0.9 else EXTENTS) for name in ("M", "N", "K")}
    return {**sizes, "K": min(sizes["K"], 9)}


def _dtypes(random: Random) -> tuple[str, ...]:
    """The dtypes that the case mixes: one, as a rule, else a few."""
    floats = [name for name in FLOATS if name != "bf16" or find_spec("ml_dtypes") is not None]
    main = random.choice(("i64", "i32", "f32", "f32", "f64", random.choice(_INTEGERS), random.choice(floats)))
    if random.random() < 0.5:
        return (main,)
    return (main, main, random.choice(_INTEGERS), random.choice((*floats, "bool_")))


def _parameters(writer: Writer) -> tuple[Parameter, ...]:
    """Arguments over all sizes, and now and then a table of subscripts."""
    r = writer.random
    shapes = [("M", "N"), ("K",), *r.sample(SHAPES, r.randint(0, 2))]
    found = []
    for number, dims in enumerate(shapes):
        dtype = r.choice(writer.dtypes)
        low, high = _range(dtype, r)
        found.append(Parameter(f"x{number}", dims, dtype, low, high, _layout(r), r.randrange(1 << 16), writer.rough))
        writer.known.append(Known(f"x{number}", dims, dtype, max(-low, high)))
    if writer.rough:
        dtype = r.choice(writer.dtypes)
        low, high = _range(dtype, r)
        found.append(Parameter("a", (), dtype, low, high, r.choice(SCALARS), r.randrange(1 << 16), True, scalar=True))
        writer.known.append(Known("a", (), dtype, max(-low, high)))
    if r.random() < 0.4:
        dim, size = r.choice("MNK"), r.choice("MN")
        dtype = r.choice(("i32", "i64", "u8"))
        found.append(
            Parameter("ids", (dim,), dtype, 0, max(0, writer.sizes[size] - 1), _layout(r), r.randrange(1 << 16))
        )
        writer.known.append(Known("ids", (dim,), dtype, 64, size))
    if not any("T" in p.dims for p in found):
        found.append(Parameter("steps", ("T",), "i32", 0, 1, "contiguous", 0))
    return tuple(found)


def _range(dtype: str, random: Random) -> tuple[int, int]:
    """Small numbers; for integers now and then all that the dtype has, so that they wrap."""
    if dtype == "bool_":
        return 0, 1
    if dtype in FLOATS or random.random() < 0.8:
        return (0, 6) if dtype[0] == "u" else (-3, 3)
    bits = min(int(dtype[1:]), 63)
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _strict(options: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple({**dict(options), "numerics": '"strict"'}.items())


def _layout(random: Random) -> str:
    return random.choice(LAYOUTS) if random.random() < 0.3 else "contiguous"


def _options(random: Random) -> tuple[tuple[str, str], ...]:
    """Options of `@po.op`: small caches and cheap threads let small programs be tiled, packed and run in parallel."""
    options = []
    if random.random() < 0.25:
        dynamic = random.choice(("True", '["M"]', '["N"]', '["M", "K"]'))
        options.append(("dynamic", dynamic))
    if random.random() < 0.4:
        options.append(("numerics", random.choice(('"strict"', '"fast"'))))
    name = random.choice(("avx2", "generic", "host"))  # wider vectors are drawn with the plans, for any machine
    machine = "host()" if name == "host" else f'preset("{name}")'
    if random.random() < 0.7:
        threshold = random.choice((1, 1, 16, 10_000))
        l2_bytes = random.choice((256, 1024, 1 << 14, 1 << 20))
        changed = f"parallel_ns={threshold}, l1_bytes={l2_bytes // 4}, l2_bytes={l2_bytes}, l3_bytes={l2_bytes}"
        options.append(("target", f"replace({machine}, {changed})"))
    elif name != "host" and random.random() < 0.6:
        options.append(("target", f'"{name}"'))
    return tuple(options)
