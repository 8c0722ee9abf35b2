"""Whether folded storage keeps every value until its last use."""

from __future__ import annotations

from collections.abc import Iterable

import islpy as isl

from polyopt.dsl.affine import axis
from polyopt.poly.dependence import Dependence
from polyopt.poly.order import Order
from polyopt.poly.scop import Scop, Statement
from polyopt.poly.space import Space


def overwritten(
    array: str, modulo: tuple[int | None, ...], own: Iterable[Dependence], order: Order
) -> tuple[Dependence, isl.Map] | None:
    """A dependence of `array` and those of its pairs whose value another element's writing may destroy in between;
    None where the storage is safe.

    modulo: per dimension, the modulus that elements are folded by; None for none
    """
    scop = order.scop
    folded = _folded(array, modulo, scop)
    for dependence in own:
        source, target = scop.statement(dependence.source), scop.statement(dependence.target)
        read = _union(relations(target, array))
        for other in scop.writers(array):
            clash_source = _clash(other.write, source.write, folded) - order.before(other.name, source.name)
            if clash_source.is_empty():
                continue
            clash_target = _clash(other.write, read, folded) - order.before(target.name, other.name).reverse()
            lost = clash_source.reverse().apply_range(clash_target) & dependence.relation
            if not lost.is_empty():
                return dependence, lost
    return None


def raced(array: str, modulo: tuple[int | None, ...], order: Order) -> isl.Map | None:
    """Pairs of instances that may write different elements of one cell at the same time, read later or not; None where
    there are none."""
    folded, writers = _folded(array, modulo, order.scop), order.scop.writers(array)
    for number, first in enumerate(writers):
        for second in writers[number:]:
            ordered = order.before(first.name, second.name) | order.before(second.name, first.name).reverse()
            pairs = _clash(first.write, second.write, folded) - ordered
            if not pairs.is_empty():
                return pairs
    return None


def relations(statement: Statement, array: str) -> list[isl.Map]:
    """The relations of all references of a statement to an array, its own write last."""
    found = [relation for read, relation in statement.references if read == array]
    return [*found, statement.write] if statement.array == array else found


def _folded(array: str, modulo: tuple[int | None, ...], scop: Scop) -> isl.Map:
    """Pairs of different elements that have one cell."""
    names = tuple(f"d{d}" for d in range(len(modulo)))
    space = Space(array, names, scop.sizes)
    cell = isl.Map.from_domain_and_range(space.universe(), Space("", (), scop.sizes).universe())
    for name, modulus in zip(names, modulo, strict=True):
        subscript = axis(name) if modulus is None else axis(name) % modulus
        cell = cell.flat_range_product(isl.Map.from_aff(space.aff(subscript)))
    same = cell.apply_range(cell.reverse())
    return same - isl.Map.identity(same.get_space())


def _clash(first: isl.Map, second: isl.Map, folded: isl.Map) -> isl.Map:
    """Pairs of instances that touch different elements of one cell."""
    return first.apply_range(folded).apply_range(second.reverse())


def _union(relations: list[isl.Map]) -> isl.Map:
    result = relations[0]
    for other in relations[1:]:
        result = result | other
    return result
