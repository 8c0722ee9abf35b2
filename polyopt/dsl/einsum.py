"""Einstein summation: numpy.einsum's notations, as one equation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from polyopt.classes import dataclass
from polyopt.dsl.affine import Affine
from polyopt.dsl.broadcast import rank_of, whole
from polyopt.dsl.expr import Call, Convert, Element, Expr, Index, Literal
from polyopt.dsl.extents import ONE, known_extents
from polyopt.dsl.spans import user_span
from polyopt.dsl.state import Handle
from polyopt.dsl.symbols import as_dtype
from polyopt.dtypes import DType
from polyopt.errors import ArgumentError, ShapeError, counted


@dataclass(frozen=True, slots=True)
class Contraction:
    """Labels of each operand's dimensions and of the result's.

    A dimension under an ellipsis is `.n`, the n-th of them from the end.
    """

    operands: tuple[tuple[str, ...], ...]
    output: tuple[str, ...]

    @property
    def summed(self) -> tuple[str, ...]:
        """The labels that are summed over, in order of first appearance."""
        every = dict.fromkeys(label for labels in self.operands for label in labels)
        return tuple(label for label in every if label not in self.output)

    def __str__(self) -> str:
        inputs = ",".join("".join(labels) for labels in self.operands)
        return f"{inputs}->{''.join(self.output)}"


def parse(arguments: Sequence[object], rank: Callable[[object], int]) -> tuple[tuple[object, ...], Contraction]:
    """The operands and their labels, from `"ij,jk->ik", a, b` or `a, [0, 1], b, [1, 2], [0, 2]`.

    rank: the number of dimensions of an operand

    Raises `ArgumentError` for a specification that numpy.einsum refuses.
    """
    if not arguments:
        raise _refused("it needs a specification and operands", "")
    spec = str(arguments[0]).replace(" ", "") if isinstance(arguments[0], str) else ""
    if isinstance(arguments[0], str):
        operands, terms, output = _from_text(spec, tuple(arguments[1:]))
    else:
        operands, terms, output = _from_lists(arguments)
    ranks = [rank(operand) for operand in operands]
    labels = tuple(_labels(term, count, n, spec) for n, (term, count) in enumerate(zip(terms, ranks, strict=True)))
    return operands, Contraction(labels, _output(labels, output, spec))


Term = list[str]
_DOTS = "..."


def _from_text(spec: str, operands: tuple[object, ...]) -> tuple[tuple[object, ...], list[Term], Term | None]:
    inputs, arrow, output = spec.partition("->")
    terms = [_split(term, spec) for term in inputs.split(",")]
    if len(terms) != len(operands):
        raise _refused(f"it names {counted(len(terms), 'operand')} and is given {len(operands)}", spec)
    return operands, terms, _split(output, spec) if arrow else None


def _split(term: str, spec: str) -> Term:
    head, dots, tail = term.partition(_DOTS)
    labels = [*head, *([_DOTS] if dots else []), *tail]
    for label in labels:
        if label == ".":
            raise _refused("an ellipsis is three dots, and stands once in an operand", spec)
        if label != _DOTS and not (label.isascii() and label.isalpha()):
            raise _refused(f"'{label}' is not a letter", spec)
    return labels


def _from_lists(arguments: Sequence[object]) -> tuple[tuple[object, ...], list[Term], Term | None]:
    pairs, rest = divmod(len(arguments), 2)
    operands = tuple(arguments[2 * n] for n in range(pairs))
    terms = [_sublist(arguments[2 * n + 1]) for n in range(pairs)]
    return operands, terms, _sublist(arguments[-1]) if rest else None


def _sublist(value: object) -> Term:
    """Labels from a list of integers below 52 and Ellipsis; 0 is A, so that implicit outputs sort as NumPy's."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    if not isinstance(value, tuple | list):
        raise _refused("an operand is not followed by a list of labels", "")
    labels: Term = []
    for label in value:
        if label is Ellipsis:
            labels.append(_DOTS)
        elif hasattr(label, "__index__") and 0 <= int(label) < len(letters):
            labels.append(letters[int(label)])
        else:
            raise _refused(f"{label!r} is not a label from 0 to 51", "")
    return labels


def _labels(term: Term, rank: int, position: int, spec: str) -> tuple[str, ...]:
    """One label per dimension, the ellipsis expanded."""
    named = [label for label in term if label != _DOTS]
    if len(term) - len(named) > 1:
        raise _refused("an operand has more than one ellipsis", spec)
    spare = rank - len(named)
    if spare < 0 or (spare > 0 and _DOTS not in term):
        raise _refused(f"operand {position} has {counted(rank, 'dimension')} and {counted(len(named), 'label')}", spec)
    return tuple(part for label in term for part in (_expanded(spare) if label == _DOTS else [label]))


def _expanded(count: int) -> list[str]:
    return [f".{n}" for n in range(count, 0, -1)]


def _output(operands: Sequence[Sequence[str]], output: Term | None, spec: str) -> tuple[str, ...]:
    count = Counter(label for labels in operands for label in labels)
    dots = sorted((label for label in count if label.startswith(".")), key=lambda label: -int(label[1:]))
    if output is None:
        return (*dots, *sorted(label for label, times in count.items() if times == 1 and not label.startswith(".")))
    named = [label for label in output if label != _DOTS]
    if dots and _DOTS not in output:
        raise _refused("the ellipsis of the operands is missing in the output", spec)
    if len(set(named)) < len(named) or len(output) - len(named) > 1:
        raise _refused("a label is in the output twice", spec)
    for label in named:
        if label not in count:
            raise _refused(f"'{label}' is in the output and in no operand", spec)
    return tuple(part for label in output for part in (dots if label == _DOTS else [label]))


def _refused(why: str, spec: str) -> ArgumentError:
    return ArgumentError(
        f"the specification {spec!r} of einsum cannot be read" if spec else "the arguments of einsum cannot be read",
        where=user_span(),
        why=f"{why[0].upper()}{why[1:]}.",
        fix="po.einsum('mk,kn->mn', x, w), as in numpy.einsum.",
        facts={"specification": spec},
    )


# --- as an equation --------------------------------------------------------------------------------------------------


def einsum_in_op(*arguments: object, dtype: object = None, optimize: object = None) -> Handle:
    """The contraction of whole tensors of an op, as one equation. optimize: accepted, as the order is chosen later."""
    operands, contraction = parse([whole(argument) for argument in arguments], _rank)
    tensors = [operand for operand in operands if isinstance(operand, Handle)]
    return contract(contraction, tensors, None if dtype is None else as_dtype(dtype))


def _rank(operand: object) -> int:
    if isinstance(operand, Handle):
        return rank_of(operand)
    raise _refused(f"{type(operand).__name__} is not a tensor of the op", "")


def contract(contraction: Contraction, tensors: Sequence[Handle], dtype: DType | None = None) -> Handle:
    """One equation: the product of the operands' elements, summed over the labels that the output lacks, in any order.

    A dimension of extent 1 is repeated where another operand is longer. Raises `ShapeError` where extents of one
    label are different numbers.
    """
    extents = _extents(contraction, tensors)
    indices = {label: Index(_index_name(label)) for label in extents}
    elements = [
        _element(tensor, labels, indices, extents) for tensor, labels in zip(tensors, contraction.operands, strict=True)
    ]
    value = elements[0] if dtype is None else Convert(elements[0], dtype)
    for element in elements[1:]:
        value = Call("mul", (value, element if dtype is None else Convert(element, dtype)))
    state = tensors[0].state
    result = state.new_tensor("einsum", rank=len(contraction.output), dtype=dtype)
    subscripts = tuple(indices[label] for label in contraction.output)
    state.define(result, subscripts, value, "sum" if contraction.summed else "define", is_contraction=True)
    return result


def _index_name(label: str) -> str:
    return f"i{label[1:]}" if label.startswith(".") else label


def _extents(contraction: Contraction, tensors: Sequence[Handle]) -> Mapping[str, tuple[Affine | None, ...]]:
    """The extents that each label has, over all operands."""
    found: dict[str, list[Affine | None]] = {}
    for tensor, labels in zip(tensors, contraction.operands, strict=True):
        for label, extent in zip(labels, known_extents(tensor, only_one=True), strict=True):
            found.setdefault(label, []).append(extent)
    for label, extents in found.items():
        numbers = {e.constant for e in extents if e is not None and e.is_constant and e != ONE}
        if len(numbers) > 1:
            raise ShapeError(
                f"label '{label}' of einsum has different extents",
                where=user_span(),
                why=f"They are {' and '.join(map(str, sorted(numbers)))}.",
                fix="give dimensions that differ labels of their own.",
                facts={"label": label, "extents": tuple(sorted(numbers))},
            )
    return {label: tuple(extents) for label, extents in found.items()}


def _element(
    tensor: Handle,
    labels: Sequence[str],
    indices: Mapping[str, Index],
    extents: Mapping[str, tuple[Affine | None, ...]],
) -> Expr:
    subscripts: list[Expr] = []
    for label, extent in zip(labels, known_extents(tensor, only_one=True), strict=True):
        repeated = extent == ONE and any(other != ONE for other in extents[label])
        subscripts.append(Literal(0) if repeated else indices[label])
    return Element(tensor, tuple(subscripts))
