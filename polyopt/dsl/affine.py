"""Quasi-affine integer expressions and conditions over axes and sizes, in one normal form.

`Affine` is a constant plus integer multiples of atoms; an atom is an axis, a size, or the floor of an affine
expression divided by a positive constant. `a % m` is `a - m * (a // m)`. Equal expressions of the same terms are
equal values, so they can key dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, assert_never

from polyopt.classes import dataclass


@dataclass(frozen=True, slots=True)
class AxisRef:
    """An index of the equation at hand."""

    name: str


@dataclass(frozen=True, slots=True)
class SizeRef:
    """A symbolic size: a parameter of the whole program."""

    name: str


@dataclass(frozen=True, slots=True)
class ExtentRef(SizeRef):
    """An extent that follows from ranges which are found when every equation is known: a size until then."""

    tensor: str
    dimension: int


@dataclass(frozen=True, slots=True)
class FloorDiv:
    """`numerator // divisor`, rounded towards minus infinity; divisor > 0."""

    numerator: Affine
    divisor: int


Atom = AxisRef | SizeRef | FloorDiv


@dataclass(frozen=True, slots=True)
class Affine:
    """`constant + sum(coefficient * atom)`; terms are sorted and free of zero coefficients."""

    constant: int = 0
    terms: tuple[tuple[Atom, int], ...] = ()

    def __add__(self, other: Affine | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.constant + other, self.terms)
        total = dict(self.terms)
        for atom, coefficient in other.terms:
            total[atom] = total.get(atom, 0) + coefficient
        return _normal(self.constant + other.constant, total)

    def __neg__(self) -> Affine:
        return self * -1

    def __sub__(self, other: Affine | int) -> Affine:
        return self + -other

    def __mul__(self, factor: int) -> Affine:
        return _normal(self.constant * factor, {atom: c * factor for atom, c in self.terms})

    def __floordiv__(self, divisor: int) -> Affine:
        """Floor division by a constant; a negative divisor is folded into the numerator."""
        assert divisor != 0, "the front end refuses a division by zero"
        if divisor < 0:
            return (-self) // -divisor
        whole = {atom: c // divisor for atom, c in self.terms if c % divisor == 0}
        rest = {atom: c for atom, c in self.terms if c % divisor != 0}
        quotient = _normal(self.constant // divisor, whole)
        if not rest:
            return quotient
        remainder = _normal(self.constant % divisor, rest)
        return quotient + Affine(0, ((FloorDiv(remainder, divisor), 1),))

    def __mod__(self, modulus: int) -> Affine:
        """Python's `%`: the result has the sign of `modulus`."""
        return self - (self // modulus) * modulus

    @property
    def is_constant(self) -> bool:
        return not self.terms

    def coefficient(self, atom: Atom) -> int:
        """The multiple of `atom` outside floors; 0 where it does not occur."""
        return dict(self.terms).get(atom, 0)

    def __str__(self) -> str:
        return affine_text(self)


def constant(value: int) -> Affine:
    return Affine(value)


def axis(name: str) -> Affine:
    return Affine(0, ((AxisRef(name), 1),))


def size(name: str) -> Affine:
    return Affine(0, ((SizeRef(name), 1),))


def extent(tensor: str, dimension: int) -> Affine:
    """The extent of a tensor, where it is not known yet."""
    return Affine(0, ((ExtentRef(f"{tensor}.shape[{dimension}]", tensor, dimension), 1),))


def _normal(value: int, coefficients: Mapping[Atom, int]) -> Affine:
    kept = [(atom, c) for atom, c in coefficients.items() if c != 0]
    return Affine(value, tuple(sorted(kept, key=lambda term: _sort_key(term[0]))))


def _sort_key(atom: Atom) -> tuple[int, str]:
    match atom:
        case AxisRef(name):
            return 0, name
        case SizeRef(name):
            return 1, name
        case FloorDiv():
            return 2, _atom_text(atom)
        case _:
            assert_never(atom)


def atoms(expression: Affine) -> Iterator[Atom]:
    """Every axis and size of the expression, those under floors included, with repetition."""
    for atom, _ in expression.terms:
        if isinstance(atom, FloorDiv):
            yield from atoms(atom.numerator)
        else:
            yield atom


def axes_of(expression: Affine) -> frozenset[str]:
    return frozenset(atom.name for atom in atoms(expression) if isinstance(atom, AxisRef))


def axes_outer_first(expression: Affine) -> tuple[str, ...]:
    """The axes that occur, those that take longer steps before those that take shorter ones; of equal ones by name."""
    steps: dict[str, int] = {}
    for atom, step in expression.terms:
        for name in axes_of(Affine(0, ((atom, 1),))):
            steps[name] = max(abs(step), steps.get(name, 0))
    return tuple(sorted(steps, key=lambda name: (-steps[name], name)))


def sizes_of(expression: Affine) -> frozenset[str]:
    return frozenset(atom.name for atom in atoms(expression) if isinstance(atom, SizeRef))


def extents_of(expression: Affine) -> tuple[ExtentRef, ...]:
    """The extents in the expression that are not known yet, in order."""
    return tuple(dict.fromkeys(atom for atom in atoms(expression) if isinstance(atom, ExtentRef)))


def is_axis(expression: Affine) -> bool:
    """Whether an expression is an axis and nothing else."""
    match expression:
        case Affine(0, ((AxisRef(), 1),)):
            return True
    return False


def is_nonnegative(expression: Affine) -> bool:
    """Whether an expression of sizes is plainly at least 0: its constant and all coefficients are."""
    if expression.constant < 0:
        return False
    for atom, coefficient in expression.terms:
        if coefficient < 0 or isinstance(atom, AxisRef):
            return False
        if isinstance(atom, FloorDiv) and not is_nonnegative(atom.numerator):
            return False
    return True


def substitute(expression: Affine, replace: Callable[[Atom], Affine | None]) -> Affine:
    """The expression with each axis and size for which `replace` gives an affine expression replaced by it."""
    result = Affine(expression.constant)
    for atom, coefficient in expression.terms:
        if isinstance(atom, FloorDiv):
            value = substitute(atom.numerator, replace) // atom.divisor
        else:
            value = replace(atom) or Affine(0, ((atom, 1),))
        result = result + value * coefficient
    return result


def evaluate(expression: Affine, axes: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """The value for given axes and sizes; axes may be NumPy arrays that broadcast."""
    total: Any = expression.constant
    for atom, coefficient in expression.terms:
        match atom:
            case AxisRef(name):
                value = axes[name]
            case SizeRef(name):
                value = sizes[name]
            case FloorDiv(numerator, divisor):
                value = evaluate(numerator, axes, sizes) // divisor
        total = total + coefficient * value
    return total


def _atom_text(atom: Atom) -> str:
    match atom:
        case AxisRef(name) | SizeRef(name):
            return name
        case FloorDiv(numerator, divisor):
            text = affine_text(numerator)
            return f"({text})//{divisor}" if " " in text else f"{text}//{divisor}"


def affine_text(expression: Affine) -> str:
    """As the user would write it: `2*i + r - 1`."""
    pieces: list[str] = []
    for atom, coefficient in expression.terms:
        name = _atom_text(atom)
        size_ = abs(coefficient)
        body = name if size_ == 1 else f"{size_}*{name}" if "//" not in name else f"{size_}*({name})"
        sign = "-" if coefficient < 0 else "+"
        pieces.append(f" {sign} {body}" if pieces else ("-" if sign == "-" else "") + body)
    if expression.constant or not pieces:
        value = expression.constant
        pieces.append(f" {'-' if value < 0 else '+'} {abs(value)}" if pieces else str(value))
    return "".join(pieces)


# --- conditions ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Compare:
    """`left OP 0`."""

    left: Affine
    op: Literal["==", "!=", ">=", ">", "<=", "<"]


@dataclass(frozen=True, slots=True)
class And:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Or:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Not:
    part: Condition


Condition = Compare | And | Or | Not
TRUE = And(())
FALSE = Or(())


def conjunction(*parts: Condition | None) -> Condition:
    """All of `parts` that are conditions; `TRUE` for none."""
    flat: list[Condition] = []
    for part in parts:
        if isinstance(part, And):
            flat.extend(part.parts)
        elif part is not None:
            flat.append(part)
    return flat[0] if len(flat) == 1 else And(tuple(flat))


def condition_affines(condition: Condition) -> Iterator[Affine]:
    """Every affine expression that the condition compares with 0."""
    match condition:
        case Compare(left):
            yield left
        case And(parts) | Or(parts):
            for part in parts:
                yield from condition_affines(part)
        case Not(part):
            yield from condition_affines(part)
        case _:
            assert_never(condition)


def map_condition(condition: Condition, change: Callable[[Affine], Affine]) -> Condition:
    """The condition with every affine expression changed."""
    match condition:
        case Compare(left, op):
            return Compare(change(left), op)
        case And(parts):
            return And(tuple(map_condition(part, change) for part in parts))
        case Or(parts):
            return Or(tuple(map_condition(part, change) for part in parts))
        case Not(part):
            return Not(map_condition(part, change))
        case _:
            assert_never(condition)


def holds(condition: Condition, axes: Mapping[str, Any], sizes: Mapping[str, int]) -> Any:
    """Whether the condition holds; element by element where axes are arrays."""
    match condition:
        case Compare(left, op):
            value = evaluate(left, axes, sizes)
            return _COMPARE[op](value)
        case And(parts):
            result: Any = True
            for part in parts:
                result = result & holds(part, axes, sizes)
            return result
        case Or(parts):
            result = False
            for part in parts:
                result = result | holds(part, axes, sizes)
            return result
        case Not(part):
            return holds(part, axes, sizes) ^ True
        case _:
            assert_never(condition)


_COMPARE: Mapping[str, Callable[[Any], Any]] = {
    "==": lambda value: value == 0,
    "!=": lambda value: value != 0,
    ">=": lambda value: value >= 0,
    ">": lambda value: value > 0,
    "<=": lambda value: value <= 0,
    "<": lambda value: value < 0,
}


def condition_text(condition: Condition) -> str:
    """As the user would write it, each comparison with its terms moved to the side where they are positive."""
    match condition:
        case Compare(left, op):
            positive = _normal(max(left.constant, 0), {a: c for a, c in left.terms if c > 0})
            negative = _normal(max(-left.constant, 0), {a: -c for a, c in left.terms if c < 0})
            return f"{positive} {op} {negative}"
        case And(()):
            return "True"
        case Or(()):
            return "False"
        case And(parts):
            return " & ".join(f"({condition_text(part)})" for part in parts)
        case Or(parts):
            return " | ".join(f"({condition_text(part)})" for part in parts)
        case Not(part):
            return f"~({condition_text(part)})"
        case _:
            assert_never(condition)
