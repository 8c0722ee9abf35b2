"""`polyopt.classes.dataclass` means what the standard library's means."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import operator
import pickle
import weakref
from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from polyopt import classes
from polyopt.classes import light

T = TypeVar("T")

KINDS: list[dict[str, bool]] = [
    {},
    {"slots": True},
    {"frozen": True},
    {"frozen": True, "slots": True},
    {"frozen": True, "slots": True, "eq": False},
    {"frozen": True, "slots": True, "order": True},
]


def family(decorate: Callable[..., Any], kind: dict[str, bool]) -> tuple[Any, Any, Any]:
    class Base(Generic[T]):
        KNOWN: ClassVar[int] = 7
        name: str
        size: int = 3
        notes: tuple[str, ...] = field(default=(), compare=False, repr=False)

        @property
        def twice(self) -> int:
            return 2 * self.size

    base = decorate(**kind)(Base)

    class Derived(base):
        parts: dict[str, int] = field(default_factory=dict, hash=False)
        size: int = 5
        total: int = field(init=False, default=0)

        def __post_init__(self) -> None:
            object.__setattr__(self, "total", self.size + len(self.parts))

        def __repr__(self) -> str:
            return f"<{self.name}>"

    class Empty:
        """Nothing in it."""

    return base, decorate(**kind)(Derived), decorate(**kind)(Empty)


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (AttributeError, KeyError, TypeError) as error:
        return type(error), str(error).replace("__main__.", "")


@pytest.mark.parametrize("uncompiled", [0, 2, 1000])
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: "-".join(kind) or "plain")
def test_it_means_what_the_standard_library_means(
    kind: dict[str, bool], uncompiled: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classes, "UNCOMPILED", uncompiled)

    def seen(decorate: Callable[..., Any]) -> Iterator[Any]:
        base, derived, empty = family(decorate, kind)
        one, same, other = base("a", 4), base("a", size=4, notes=("n",)), base("b")
        child, sibling = derived("c", parts={"x": 1}), derived("c")
        for value in (one, child, empty()):
            yield dataclasses.is_dataclass(value), dataclasses.asdict(value), dataclasses.astuple(value)
            yield [(f.name, f.type, f.compare, f.init) for f in dataclasses.fields(value)], value.__match_args__
            yield copy.copy(value) is not value, dataclasses.astuple(copy.deepcopy(value))
            yield hasattr(value, "__dict__"), outcome(lambda value=value: setattr(value, "name", "z")) is None
            yield outcome(lambda value=value: setattr(value, "unknown", "z")) is None
        yield repr(one).rpartition(".")[2], repr(child), repr(empty()).rpartition(".")[2]
        yield one == same, one != same, one == other, one == child, child == sibling, empty() == empty(), one == 3
        yield base.__hash__ is None, outcome(lambda: hash(one) == hash(same)), outcome(lambda: {one: 1}[same] == 1)
        for compare in (operator.lt, operator.le, operator.gt, operator.ge):
            yield outcome(lambda compare=compare: compare(one, same)) is True
        yield dataclasses.astuple(dataclasses.replace(child, name="d")), outcome(lambda: delattr(one, "name"))
        yield sibling.parts is not derived("c").parts, child.total, child.twice, base.KNOWN
        yield outcome(lambda: base()), outcome(lambda: base("a", 1, (), 2)), outcome(lambda: derived("a", total=1))
        yield list(inspect.signature(base.__init__).parameters), base.__init__.__annotations__

    for ours, theirs in zip(seen(light), seen(dataclasses.dataclass), strict=True):
        assert ours == theirs


@light(frozen=True, slots=True)
class Kept:
    name: str
    parts: tuple[int, ...] = ()


def test_values_are_pickled() -> None:
    value = Kept("a", (1, 2))  # type: ignore[call-arg]
    assert pickle.loads(pickle.dumps(value)) == value  # noqa: S301


def test_weak_references_are_asked_for() -> None:
    class Plain:
        name: str = ""

    with pytest.raises(TypeError):
        weakref.ref(light(slots=True)(Plain)())
    value = light(slots=True, weakref_slot=True)(Plain)()
    assert weakref.ref(value)() is value


def test_a_shared_default_is_refused() -> None:
    class Shared:
        parts: list[int] = []  # noqa: RUF012

    with pytest.raises(ValueError, match="default_factory"):
        light(Shared)


def test_a_field_needs_an_annotation() -> None:
    class Untyped:
        parts = field(default=1)

    with pytest.raises(TypeError, match="annotation"):
        light(Untyped)
