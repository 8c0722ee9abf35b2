"""The loop program: what runs, in which order, on which storage.

`loops.lower` makes it from a mapped schedule; the C and LLVM emitters, the printer, the verifier and the
interpreter read it. Expressions are those of the program (`Const`, `Op`, `Cast`) with `Load` and `Var` added;
index arithmetic is 64-bit `Op`s ("add", "sub", "mul", "floordiv", "mod", "minimum", "maximum", comparisons,
"select") of dtype i64. Every expression is total: what may only be read under a condition carries a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Literal, TypeAlias, assert_never

from polyopt.classes import dataclass
from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import DType, i64
from polyopt.errors import Span
from polyopt.room import with_room


@dataclass(frozen=True, slots=True)
class Check:
    """A run-time bounds check of one data subscript. A failure records the site and reads nothing outside.

    site:   number of the check; `LoopProgram.sites[site]` says where it is
    """

    dimension: int
    site: int


@dataclass(frozen=True, slots=True)
class Load:
    """One element of a buffer.

    indices: one i64 expression per buffer dimension
    mask:    a bool expression; where it is false nothing is read and the value is `Const 0` of the dtype
    checks:  dimensions whose index is data: an index outside [0, extent) records an error and yields 0
    """

    buffer: str
    indices: tuple[Expr, ...]
    dtype: DType
    mask: Expr | None = None
    checks: tuple[Check, ...] = ()


LoopKind: TypeAlias = Literal[
    "serial", "parallel", "vector", "unrolled", "group", "grid", "block", "pipeline", "warp", "warpgroup", "exchange"
]
CONCURRENT = ("parallel", "vector", "grid", "block")
"""Kinds of loops whose iterations may run at once."""
COMBINED = ("vector", "block")
"""Those of them that combine what their iterations add to one element."""
Expr: TypeAlias = "Const | Op[Expr] | Cast[Expr] | Var | Load"


@dataclass(frozen=True, slots=True)
class Fetch:
    """What the vectors of a statement ask for while they read an element: one that is further on, and far away.

    reader:  the statement
    bytes:   from what it reads
    further: by how much each index is greater than its own; empty for the same
    is_near: wanted in the first cache; otherwise in the second one
    """

    reader: str
    bytes: int = 0
    further: tuple[int, ...] = ()
    is_near: bool = True


@dataclass(frozen=True, slots=True)
class Buffer:
    """Storage of one array.

    shape:   extents, i64 expressions over `LoopProgram.sizes` (constants for a static kernel)
    strides: bytes per step of each dimension (constants, or `Var`s of `LoopProgram.runtime_strides`); may be
             negative, zero, or no multiple of the item size; None means C-contiguous
    space:   "argument": the caller's array; "workspace": heap, part of the kernel's one workspace block;
             "local": private to one iteration of the loops around its `Alloc`, small, on the stack
    aligned: the base address and every row are a multiple of 64 bytes (never for arguments unless tested)
    given:   shape of the caller's array where it is not `shape`: some of its dimensions are one here
    passes:  vectors stored here go past the caches, to memory: for results that nobody reads soon
    in_place_of: the arguments whose memory the caller may have given for this one too, if it passes the caches: then
             reading them has brought its lines, and it does not pass
    outgrows: bytes, as expressions over sizes, and what each must exceed in a call for the buffer to pass the caches
    ahead:   what vector loops ask for before they read it
    padded:  a row may end in elements that no iteration defines; lanes past the end of a loop may set them to zero
    swizzled: rows of its last two dimensions lie in lines of 128 bytes whose parts of 16 bytes change places, so that
              neighboring rows are in different banks of a GPU's shared memory: as a warp reads them best ("lines",
              `po_swizzled`), or as instructions of a warp group want it ("atoms" of 8 lines, `po_in_atom`)
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    space: Literal["argument", "workspace", "local"]
    strides: tuple[Expr, ...] | None = None
    aligned: bool = False
    given: tuple[Expr, ...] | None = None
    passes: bool = False
    in_place_of: tuple[str, ...] = ()
    outgrows: tuple[tuple[Expr, int], ...] = ()
    ahead: Fetch | None = None
    padded: bool = False
    swizzled: Literal["", "lines", "atoms"] = ""

    @property
    def callers_shape(self) -> tuple[Expr, ...]:
        """Extents of the array that the caller has."""
        return self.shape if self.given is None else self.given


@dataclass(frozen=True, slots=True)
class Block:
    """Statements one after the other."""

    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class For:
    """`for var in range(lower, upper, step)`; lower, upper: i64 expressions, upper exclusive; step > 0.

    kind:  "serial"
           "parallel": iterations in any order, on any thread, at once
           "vector":   iterations in any order, in lanes; the innermost loop but for groups; reductions over it are
                       combined
           "unrolled": serial, wanted flat: trip count small
           "group":    serial, a few neighbours that one instruction takes at once; the innermost loop
           "grid":     iterations in any order, at once, each a block of threads of a GPU; never inside a block loop
           "block":    iterations in any order, dealt out to the threads of a block in turn; all of them are done, and
                       seen by every thread, when the loop ends; reductions over it are combined
           "pipeline": serial, its copies to shared memory asynchronous: one group of them per iteration, of which all
                       but the newest `chunk - 2` have come, for all threads, when an iteration starts that reads;
                       all but one fewer where instructions of warp groups may still read what the iteration before did
           "warp":     serial, wanted as one instruction of a warp per tile; the body is what it means
           "warpgroup": the same of four warps together, which read shared memory on their own while their threads go
                       on: a pipeline around waits for those of the iteration before, and behind its loop for all
           "exchange": serial, leaves registers as they are; lanes of a warp that hold elements for each other, as
                       instructions left or want them, exchange these here
    axis:  the axes it scans, for the reader ("i", "i tile")
    chunk: for "parallel": iterations per unit of work (>= 1); for "group": how many neighbours a whole group has;
           for "grid": iterations that `codegen_cuda.partition` gives to one block, 1 once it has; for "block": how
           many threads share the iterations; 0 inside another block loop: all threads of the block come by, and share
           one run of the loop; for "pipeline": slots of the ring that the copies go through
    """

    var: str
    lower: Expr
    upper: Expr
    body: Stmt
    step: int = 1
    kind: LoopKind = "serial"
    axis: str = ""
    chunk: int = 1


@dataclass(frozen=True, slots=True)
class If:
    condition: Expr
    then: Stmt
    otherwise: Stmt | None = None


@dataclass(frozen=True, slots=True)
class Alloc:
    """`buffer` (local, or a workspace buffer private to the enclosing parallel iteration) lives in `body`."""

    buffer: Buffer
    body: Stmt


@dataclass(frozen=True, slots=True)
class Store:
    """One instance of a statement: `buffer[indices] = value`, or `combine` with what is there.

    statement, instance: which instance of the scop this is (axis values in the statement's order)
    reducer:  None for a plain assignment; else the stored value is combined with the old one. Stores with the
              same reducer to one element commute.
    checks:   as in `Load`; a store whose index fails does not happen
    """

    statement: str
    instance: tuple[Expr, ...]
    buffer: str
    indices: tuple[Expr, ...]
    value: Expr
    reducer: Reducer | None = None
    checks: tuple[Check, ...] = ()


Stmt = Block | For | If | Alloc | Store


@dataclass(frozen=True, slots=True)
class Site:
    """What a run-time check checks, for the message of a `BoundsError`."""

    array: str
    dimension: int
    span: Span | None


@dataclass(frozen=True, slots=True)
class LoopProgram:
    """A kernel as loops.

    arguments: the caller's arrays: inputs in call order, then results
    workspace: buffers that live for the whole call
    sizes:     names of the symbolic sizes, then of run-time strides: the i64 parameters, as `Var`s
    written:   names of the arguments that are results
    sites:     what each run-time check is about
    notes:     what else the report should say, a sentence each: what became of a plan on the way
    screened:  pairs of arguments that are multiplied in groups: a kernel looks through them when it starts, and where
               no product is too small, instructions that take subnormal numbers for zero may do it
    """

    name: str
    arguments: tuple[Buffer, ...]
    workspace: tuple[Buffer, ...]
    sizes: tuple[str, ...]
    written: tuple[str, ...]
    body: Stmt
    sites: tuple[Site, ...] = ()
    notes: tuple[str, ...] = ()
    screened: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """The loop nest as readable code."""
        from polyopt.loops.text import loop_text  # the printer reads this module's types

        return with_room(lambda: loop_text(self))


# --- building and traversal -----------------------------------------------------------------------------------


def integer(value: int) -> Const:
    """An i64 constant."""
    return Const(value, i64)


def index_var(name: str) -> Var:
    """A loop variable or size."""
    return Var(name, i64)


def expr_children(expr: Expr) -> tuple[Expr, ...]:
    match expr:
        case Const() | Var():
            return ()
        case Op(args=args):
            return args
        case Cast(arg=arg):
            return (arg,)
        case Load(indices=indices, mask=mask):
            return indices if mask is None else (*indices, mask)
        case _:
            assert_never(expr)


def walk_expr(expr: Expr) -> Iterator[Expr]:
    """The expression and all its sub-expressions, parents first."""
    open_: list[Expr] = [expr]
    while open_:
        node = open_.pop()
        yield node
        open_.extend(reversed(expr_children(node)))


def parts_of(expr: Expr) -> Iterator[Expr]:
    """The same, each object once: what a long expression repeats is one object (`loops.interned`)."""
    open_, seen = [expr], {id(expr)}
    while open_:
        node = open_.pop()
        yield node
        for child in reversed(expr_children(node)):
            if id(child) not in seen:
                seen.add(id(child))
                open_.append(child)


def uses(expr: Expr, var: str) -> bool:
    """Whether an expression depends on a variable."""
    return any(isinstance(node, Var) and node.name == var for node in parts_of(expr))


def substatements(statement: Stmt) -> tuple[Stmt, ...]:
    match statement:
        case Block(body):
            return body
        case For(body=body) | Alloc(body=body):
            return (body,)
        case If(then=then, otherwise=otherwise):
            return (then,) if otherwise is None else (then, otherwise)
        case Store():
            return ()
        case _:
            assert_never(statement)


def walk(statement: Stmt) -> Iterator[Stmt]:
    """The statement and everything in it, parents first, in order."""
    yield statement
    for inner in substatements(statement):
        yield from walk(inner)


def stores_of(statement: Stmt) -> list[Store]:
    """All stores in the statement, in order."""
    return [inner for inner in walk(statement) if isinstance(inner, Store)]


def buffers_used(statement: Stmt) -> frozenset[str]:
    """Names of all buffers that are loaded from or stored to."""
    used: set[str] = set()
    for inner in walk(statement):
        if isinstance(inner, Store):
            used.add(inner.buffer)
        for expr in _own_expressions(inner):
            used.update(node.buffer for node in parts_of(expr) if isinstance(node, Load))
    return frozenset(used)


def _own_expressions(statement: Stmt) -> tuple[Expr, ...]:
    """What a statement evaluates itself, not what those in it do."""
    match statement:
        case For(lower=lower, upper=upper):
            return lower, upper
        case If(condition):
            return (condition,)
        case Store(indices=indices, value=value):
            return *indices, value
        case _:
            return ()


_COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_ROUNDED = frozenset({"add", "sub", "mul", "truediv"})


def compares_numbers(statement: Stmt) -> bool:
    """Whether a store depends on how two floats compare, one of which is computed there and then: as the position of a
    maximum asks where a value is what the maximum was. Such values are to be rounded in one way wherever they are
    computed, so that nothing is contracted or reordered."""
    return any(
        isinstance(node, Op)
        and node.name in _COMPARISONS
        and node.args[0].dtype.is_float
        and not any(isinstance(arg, Const) for arg in node.args)
        and any(isinstance(n, Op) and n.name in _ROUNDED and n.dtype.is_float for n in parts_of(node))
        for store in stores_of(statement)
        for node in parts_of(store.value)
    )


def substitute(expr: Expr, values: dict[str, Expr]) -> Expr:
    """The expression with variables replaced; a load that it repeats as one object stays one."""
    return _substitute(expr, values, {})


def _substitute(expr: Expr, values: dict[str, Expr], loads: dict[int, Load]) -> Expr:
    match expr:
        case Var(name):
            return values.get(name, expr)
        case Const():
            return expr
        case Op(args=args):
            return replace(expr, args=tuple(_substitute(a, values, loads) for a in args))
        case Cast(arg=arg):
            return replace(expr, arg=_substitute(arg, values, loads))
        case Load(indices=indices, mask=mask):
            if id(expr) not in loads:
                loads[id(expr)] = replace(
                    expr,
                    indices=tuple(_substitute(i, values, loads) for i in indices),
                    mask=None if mask is None else _substitute(mask, values, loads),
                )
            return loads[id(expr)]
        case _:
            assert_never(expr)


def substitute_in(statement: Stmt, values: dict[str, Expr]) -> Stmt:
    """The statement with variables replaced, of which none is one of its own loops'."""

    def at(expr: Expr) -> Expr:
        return substitute(expr, values)

    match statement:
        case Block(body):
            return Block(tuple(substitute_in(inner, values) for inner in body))
        case For(lower=lower, upper=upper, body=body):
            return replace(statement, lower=at(lower), upper=at(upper), body=substitute_in(body, values))
        case If(condition, then, otherwise):
            other = None if otherwise is None else substitute_in(otherwise, values)
            return If(at(condition), substitute_in(then, values), other)
        case Alloc(body=body):
            return replace(statement, body=substitute_in(body, values))
        case Store(instance=instance, indices=indices, value=value):
            changed = replace(statement, instance=tuple(map(at, instance)), indices=tuple(map(at, indices)))
            return replace(changed, value=at(value))
        case _:
            assert_never(statement)


def map_stores(statement: Stmt, change: Callable[[Store], Store]) -> Stmt:
    """The statement with each store changed."""
    match statement:
        case Store():
            return change(statement)
        case Block(body):
            return Block(tuple(map_stores(inner, change) for inner in body))
        case For(body=body) | Alloc(body=body):
            return replace(statement, body=map_stores(body, change))
        case If(_, then, otherwise):
            other = None if otherwise is None else map_stores(otherwise, change)
            return replace(statement, then=map_stores(then, change), otherwise=other)
        case _:
            assert_never(statement)
