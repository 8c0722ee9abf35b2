"""A random operator as a value: parameters, definitions and a call, and the source text that they stand for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from math import prod

from polyopt.classes import dataclass

INDICES: Mapping[str, tuple[str, str]] = {
    "M": ("i", "ii"),
    "N": ("j", "jj"),
    "K": ("k", "kk"),
    "2*M": ("d", "dd"),
    "T": ("t", "tt"),
    "2*M + K - 2": ("e", "ee"),
    "M + N - 1": ("s", "ss"),
}
"""The two index variables over each extent."""

DTYPES = ("bool_", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "bf16", "f32", "f64")


@dataclass(frozen=True, slots=True)
class Node:
    """Part of an expression. template: its text, with `{}` for each part.

    dtype: of its value; "" for a condition on indices
    bound: greatest absolute value, so that float arithmetic stays exact
    fixed: shrinking keeps it, since exactness rests on it
    """

    template: str
    parts: tuple[Node, ...] = ()
    dtype: str = ""
    bound: float = 0.0
    fixed: bool = False

    def __str__(self) -> str:
        return self.template.format(*self.parts)


@dataclass(frozen=True, slots=True)
class Equation:
    """`left operator value`, under `po.when(guard, …)` if there is a guard. left: the tensor's subscript, "[i, j]"."""

    left: str
    value: Node
    operator: str = "="
    guard: Node | None = None

    def text(self, name: str) -> str:
        value = str(self.value) if self.guard is None else f"po.when({self.guard}, {self.value})"
        return f"{name}{self.left} {self.operator} {value}"


@dataclass(frozen=True, slots=True)
class Definition:
    """A tensor and its equations.

    dims:  extents as texts, such as "M" or "2*M"
    typed, shaped: whether dtype and shape are declared
    whole: the tensor as one expression over whole tensors, in place of equations
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    equations: tuple[Equation, ...]
    typed: bool = True
    shaped: bool = True
    whole: Node | None = None

    def declaration(self) -> Iterator[str]:
        if self.whole is not None:
            return
        options = [f'"{self.name}"']
        if self.shaped:
            options.append(f"shape={_tuple(self.dims)}")
        if self.typed:
            options.append(f"dtype=po.{self.dtype}")
        yield f"{self.name} = po.tensor({', '.join(options)})"

    def lines(self) -> Iterator[str]:
        if self.whole is not None:
            yield f"{self.name} = {self.whole}"
        yield from (equation.text(self.name) for equation in self.equations)


@dataclass(frozen=True, slots=True)
class Parameter:
    """An argument: numbers drawn from `seed`, laid out in memory as `layout` says; whole ones in [low, high].

    rough:  floats of any kind instead
    scalar: a number, declared by its dtype alone
    """

    name: str
    dims: tuple[str, ...]
    dtype: str
    low: int
    high: int
    layout: str
    seed: int
    rough: bool = False
    scalar: bool = False

    def declaration(self) -> str:
        return f"{self.name}: po.{self.dtype}" + ("" if self.scalar else f"[{_dims(self.dims)}]")

    def drawn(self, sizes: Mapping[str, int]) -> str:
        rough = ", rough=True" * self.rough
        shape = shape_of(self.dims, sizes)
        return f"draw({shape}, {self.dtype!r}, {self.low}, {self.high}, {self.layout!r}, seed={self.seed}{rough})"


@dataclass(frozen=True, slots=True)
class Case:
    """An operator with its call.

    sizes:   values of the symbolic sizes
    extents: whether index variables carry their extents
    options: of `@po.op`, as texts
    out:     None, a layout, or "input": the memory of the first argument that fits, or "overlap": shifted by one
    plans:   seeds of plans that are drawn for the operator, beside the compiler's own (`fuzz.plans`)
    gpu:     whether the target is a GPU, for which the emulator stands in
    printed: whether the C that is printed of the operator, and of its plans, runs too
    labels:  what index variables are called, where it is not their own name
    others:  values of symbolic sizes in another call of the same kernel
    """

    seed: int
    sizes: tuple[tuple[str, int], ...]
    parameters: tuple[Parameter, ...]
    definitions: tuple[Definition, ...]
    results: tuple[str, ...]
    extents: bool = True
    options: tuple[tuple[str, str], ...] = ()
    threads: int = 1
    out: str | None = None
    plans: tuple[int, ...] = ()
    gpu: bool = False
    printed: bool = False
    labels: tuple[tuple[str, str], ...] = ()
    others: tuple[tuple[str, int], ...] = ()

    def calls(self) -> list[dict[str, int]]:
        """The sizes of the call, and of another one, no greater: bounds of numbers rest on them."""
        sizes = dict(self.sizes)
        smaller = {name: min(size, sizes[name]) for name, size in self.others if name in sizes}
        return [sizes, {**sizes, **smaller}] if smaller else [sizes]

    def operator_source(self) -> str:
        """The operator `fuzzed` as a module of its own."""
        body = [line for definition in self.definitions for line in definition.declaration()]
        body += [line for definition in self.definitions for line in definition.lines()]
        body.append(f"return {self.results[0] if len(self.results) == 1 else ', '.join(self.results)}")
        signature = ", ".join(p.declaration() for p in self.parameters)
        options = ", ".join(f"{name}={text}" for name, text in self.options)
        texts = " ".join(text for _, text in self.options)
        machine = next((name for name in ("gpu_preset", "preset", "host") if f"{name}(" in texts), "")
        used = set(re.findall(r"\w+", "\n".join((*body, signature))))
        lines = [
            *(("from dataclasses import replace", "") if "replace(" in texts else ()),
            "import polyopt as po",
            *((f"from polyopt.target import {machine}",) if machine else ()),
            "",
            *(f'{name} = po.size("{name}")' for name, _ in self.sizes),
            *(f"{name} = {text}" for name, text in self._indices() if name in used),
            "",
            f"@po.op({options})" if options else "@po.op",
            f"def fuzzed({signature}):",
            *(f"    {line}" for line in body),
        ]
        return "\n".join(lines) + "\n"

    def script(self) -> str:
        """A program that runs the operator and compares it with its reference."""
        numbers, *others = self.calls()
        drawn = [f"{p.name} = {p.drawn(numbers)}" for p in self.parameters]
        call = ", ".join(p.name for p in self.parameters) + "," * (len(self.parameters) == 1)
        where = ", gpu=True" * self.gpu + ", printed=True" * self.printed + ", others=others" * bool(others)
        lines = [
            f"# seed {self.seed}",
            self.operator_source(),
            "from polyopt.fuzz.arrays import draw",
            "from polyopt.fuzz.check import compare",
            "",
            *drawn,
            *(f"others = [({' '.join(f'{p.drawn(sizes)},' for p in self.parameters)})]" for sizes in others),
            f"po.set_num_threads({self.threads})",
            f"compare(fuzzed, ({call}), out={self.out!r}, plans={self.plans}{where})",
        ]
        return "\n".join(lines) + "\n"

    def _indices(self) -> Iterator[tuple[str, str]]:
        labels = dict(self.labels)
        for size, names in INDICES.items():
            for name in names:
                extent = f", extent={size}" if self.extents or size not in ("M", "N", "K") else ""
                yield name, f'po.index("{labels.get(name, name)}"{extent})'


def shape_of(dims: tuple[str, ...], sizes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(extent_of(dim, sizes) for dim in dims)


def extent_of(dim: str, sizes: Mapping[str, int]) -> int:
    """The value of an extent, "3", "2*M" or "M + N - 1"; 0 where it is less than that."""
    total, sign = 0, 1
    for token in dim.split():
        if token in ("+", "-"):
            sign = 1 if token == "+" else -1
        else:
            total += sign * prod(int(part) if part.isdigit() else sizes[part] for part in token.split("*"))
    return max(0, total)


def _tuple(dims: tuple[str, ...]) -> str:
    return f"({', '.join(dims)}{',' * (len(dims) == 1)})"


def _dims(dims: tuple[str, ...]) -> str:
    return ", ".join(dims) if dims else "()"
