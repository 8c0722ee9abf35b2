"""From the definitions of a trace to the typed core program.

Keeps what the results need, has the dtype of each tensor found (`dsl.inference`), and then builds every equation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from polyopt.dsl import affine as af
from polyopt.dsl import ir
from polyopt.dsl.affine import Affine
from polyopt.dsl.constants import constant
from polyopt.dsl.expr import AffineSize, Expr, Index, Size, subtracted, walk
from polyopt.dsl.inference import Reader, reads_of
from polyopt.dsl.lower_reductions import accumulated, as_axis, summand
from polyopt.dsl.recognise import Scope, ranges_in
from polyopt.dsl.state import Definition, Handle, State
from polyopt.dsl.types import concrete
from polyopt.dsl.values import Builder, Reads
from polyopt.dtypes import DType, accumulator, promote
from polyopt.errors import DefinitionError, DTypeError, Span


def elaborate(state: State, parameters: Sequence[Handle], results: Sequence[Handle]) -> ir.Program:
    """The program of a finished trace, with the equations that the results need and no others.

    Raises `DefinitionError` and `DTypeError` with the user's line.
    """
    kept = _reachable(state, results)
    needed = frozenset(kept)
    definitions = [definition for definition in state.definitions if definition.tensor in needed]
    reader = Reader(_size_names(definitions, parameters))
    types = reader.infer_dtypes(kept)
    equations = _name_equations(_equations(reader, definitions))
    _check_counts(equations)
    _check_inlined_dtypes(state, needed, types)
    outputs = frozenset(results)
    locals_ = [tensor for tensor in state.tensors if tensor in needed and tensor.role == "local"]
    tensors = tuple(_core_tensor(t, types, outputs) for t in [*parameters, *locals_])
    program = ir.Program(
        name=state.name,
        sizes=(),
        tensors=tensors,
        equations=tuple(equations),
        parameters=tuple(tensor.name for tensor in parameters),
        results=tuple(tensor.name for tensor in results),
        conditions=tuple(dict.fromkeys(state.conditions)),
        agreements=_of_tensors(state.agreements, frozenset(tensor.name for tensor in tensors)),
    )
    return with_sizes(program)


def _of_tensors(
    agreements: Sequence[ir.Agreement | ir.UsedExtent], kept: frozenset[str]
) -> tuple[ir.Agreement | ir.UsedExtent, ...]:
    """The agreements on tensors that the program has: nothing finds the extents of others."""
    return tuple(
        agreement
        for agreement in agreements
        for affines in [tuple(af.condition_affines(agreement.condition))]
        if all(extent.tensor in kept for affine in affines for extent in af.extents_of(affine))
    )


def _size_names(definitions: Sequence[Definition], parameters: Sequence[Handle]) -> frozenset[str]:
    roots = [root for definition in definitions for root in (*definition.subscripts, definition.value)]
    nodes = [node for root in roots for node in walk(root)]
    affines = [extent for parameter in parameters for extent in parameter.dims or ()]
    affines += [node.affine for node in nodes if isinstance(node, AffineSize)]
    affines += [affine for definition in definitions for affine in definition.sizes.values()]
    named = {node.name for node in nodes if isinstance(node, Size)}
    return frozenset(named.union(*(af.sizes_of(affine) for affine in affines)))


def with_sizes(program: ir.Program) -> ir.Program:
    """The program with its `sizes` listed: those of the parameters first, in order, then the others as they occur."""
    names: dict[str, None] = {}
    for affine in all_affines(program):
        sizes = (atom for atom in af.atoms(affine) if isinstance(atom, af.SizeRef))
        names.update(dict.fromkeys(size.name for size in sizes if not isinstance(size, af.ExtentRef)))
    return replace(program, sizes=tuple(names))


def all_affines(program: ir.Program) -> Iterable[Affine]:
    """Every affine expression of the program: shapes, ranges, subscripts, conditions and index values."""
    for tensor in program.tensors:
        yield from tensor.shape or ()
    for equation in program.equations:
        for axis in equation.all_axes:
            yield from axis.lower + axis.upper
        yield from (s for s in equation.subscripts if isinstance(s, Affine))
        yield from af.condition_affines(equation.guard)
        data = [s.value for s in equation.subscripts if isinstance(s, ir.DataIndex)]
        for root in [equation.value, *data]:
            for node in ir.walk(root):
                yield from _node_affines(node)
    for condition in (*program.conditions, *(agreement.condition for agreement in program.agreements)):
        yield from af.condition_affines(condition)


def _node_affines(node: ir.Expr) -> Iterable[Affine]:
    match node:
        case ir.IndexValue(affine=affine):
            yield affine
        case ir.Read(subscripts=subscripts):
            yield from (s for s in subscripts if isinstance(s, Affine))
        case ir.Where(condition=condition):
            yield from af.condition_affines(condition)
        case ir.Reduce(axes=axes, guard=guard):
            for axis in axes:
                yield from axis.lower + axis.upper
            yield from af.condition_affines(guard)


# --- what is needed --------------------------------------------------------------------------------------------------


def _reachable(state: State, results: Sequence[Handle]) -> tuple[Handle, ...]:
    """The tensors that the results depend on, producers before consumers where there is no cycle."""
    done: dict[Handle, None] = {}
    seen: set[Handle] = set()
    stack: list[tuple[Handle, Span | None, bool]] = [(tensor, tensor.span, False) for tensor in reversed(results)]
    while stack:
        tensor, span, expanded = stack.pop()
        if expanded:
            done[tensor] = None
            continue
        if tensor in seen:
            continue
        seen.add(tensor)
        _require_own(tensor, state, span)
        _require_definition(tensor, span)
        stack.append((tensor, span, True))
        reads = [read for definition in tensor.definitions for read in reads_of(definition)]
        stack.extend((read.tensor, read.span, False) for read in reversed(reads) if read.tensor not in seen)
    return tuple(done)


def _require_own(tensor: Handle, state: State, span: Span | None) -> None:
    if tensor.state is not state:
        raise DefinitionError(
            f"'{tensor.name}' belongs to another op",
            where=span,
            why=f"It was made while '{tensor.state.name}' was read, and is used in '{state.name}'.",
            fix="pass it as an argument: an op that calls the other one uses what that returns.",
            facts={"tensor": tensor.name},
        )


def _require_definition(tensor: Handle, span: Span | None) -> None:
    kinds = {definition.kind for definition in tensor.definitions}
    if tensor.role == "local" and not kinds:
        raise DefinitionError(
            f"'{tensor.name}' is used and never defined",
            where=span,
            why=f"No equation has '{tensor.name}' on its left side.",
            fix=f"define it: {tensor.name}[i] = ... (or += to sum).",
            facts={"tensor": tensor.name},
        )
    if {"sum", "prod"} <= kinds:
        last = tensor.definitions[-1]
        raise DefinitionError(
            f"'{tensor.name}' is defined with both += and *=",
            where=last.span,
            why="Equations have no order, so it is not said which comes first.",
            fix="give the product a tensor of its own and add that.",
            facts={"tensor": tensor.name},
        )


# --- equations --------------------------------------------------------------------------------------------------------


def _equations(reader: Reader, definitions: Sequence[Definition]) -> list[ir.Equation]:
    """One equation for each definition; what is added up onto one tensor is added up in one dtype."""
    equations = [_equation(reader, definition) for definition in definitions]
    accumulators: dict[Handle, DType] = {}
    for definition, equation in zip(definitions, equations, strict=True):
        if equation.reducer is not None:
            dtype = equation.reducer.dtype
            accumulators[definition.tensor] = _wider(dtype, accumulators.get(definition.tensor, dtype))
    return [
        equation
        if equation.reducer is None or equation.reducer.dtype == accumulators[definition.tensor]
        else _equation(reader, definition, accumulators[definition.tensor])
        for definition, equation in zip(definitions, equations, strict=True)
    ]


def _equation(reader: Reader, definition: Definition, shared: DType | None = None) -> ir.Equation:
    """shared: the accumulator, where other definitions of the tensor ask for one"""
    tensor = definition.tensor
    dtype = concrete(reader.types[tensor])
    one = reader.read(definition)
    build, scope = one.build, one.scope
    reducer = None
    if definition.kind == "define":
        node = build.convert(build.build(one.value, scope), dtype, definition.span)
    else:
        node = _added(build, one.value, scope, dtype, shared)
        neutral = constant(int(definition.kind == "prod"), node.dtype, definition.span)
        reducer = ir.Reducer(definition.kind, node.dtype, neutral, is_contraction=definition.is_contraction)
    tensor.state.conditions += build.converter.conditions
    return ir.Equation(
        name=tensor.name,
        tensor=tensor.name,
        axes=_axes(definition, one.left, scope),
        subscripts=tuple(build.subscript(s, scope, tensor) for s in definition.subscripts),
        value=node,
        guard=one.guard,
        reducer=reducer,
        reduce_axes=_axes(definition, one.others, scope),
        span=definition.span,
        is_whole=definition.is_whole,
    )


# --- parts of equations -----------------------------------------------------------------------------------------------


def _axes(definition: Definition, indices: Sequence[Index], scope: Scope) -> tuple[ir.Axis, ...]:
    """The axes of indices that an equation binds. Raises `DefinitionError` where ops mean different ranges."""
    meanings = ranges_in((*definition.subscripts, definition.value), definition.sizes)
    found = []
    for index in indices:
        axes = [as_axis(index, scope, sizes) for sizes in meanings[index]]
        if any(axis != axes[0] for axis in axes):
            raise DefinitionError(
                f"index '{index.name}' has two ranges in the definition of '{definition.tensor.name}'",
                where=definition.span,
                why="Its range is in sizes that mean other extents in the op that is called.",
                fix=f"pass '{index.name}' to the op, or give the two ops indices of their own.",
                facts={"index": index.name},
            )
        found.append(axes[0])
    return tuple(found)


_MOST_OPERATIONS = 50_000
"""Of one definition."""

_MOST_REPEATED = 25_000
"""Operations of all definitions that are written out again: up to some twenty seconds of a compile."""


def _operations(value: ir.Expr) -> tuple[int, int]:
    """Nodes of a value written out, each shared one as often as it is used; and nodes. Without recursion."""
    counts: dict[int, int] = {}
    work = [value]
    while work:
        node = work[-1]
        missing = [child for child in ir.children(node) if id(child) not in counts]
        if missing:
            work.extend(missing)
            continue
        counts[id(node)] = 1 + sum(counts[id(child)] for child in ir.children(node))
        work.pop()
    return counts[id(value)], len(counts)


def _check_counts(equations: Sequence[ir.Equation]) -> None:
    """Raises `DefinitionError` for definitions that repeat their parts until they are too large to compile."""
    repeated = 0
    for equation in equations:
        counts = [_operations(expr) for expr in equation.exprs]
        operations = sum(written for written, _ in counts)
        repeated += operations - sum(different for _, different in counts)
        what = f"the definition of '{equation.tensor}' has more than {_MOST_OPERATIONS} operations"
        if operations <= _MOST_OPERATIONS:
            if repeated <= _MOST_REPEATED:
                continue
            what = f"the definitions up to that of '{equation.tensor}' repeat more than {_MOST_REPEATED} operations"
        raise DefinitionError(
            what,
            where=equation.span,
            why="A Python value that is used twice is written out twice, so repeated squaring doubles each time.",
            fix="give repeated parts a tensor of their own: t[i] = ..., and read t[i].",
            facts={"operations": operations, "repeated": repeated},
        )


def _added(build: Builder, value: Expr, scope: Scope, dtype: DType, shared: DType | None) -> ir.Expr:
    """The right side of an accumulation in `shared` or else in a dtype that holds the value and what the tensor has."""
    taken = subtracted(value)
    if taken is not None:
        node = _added(build, taken, scope, dtype, shared)
        if isinstance(node, ir.Const) and node.dtype.kind != "u":
            return constant(-node.value, node.dtype, value.span)
        return ir.Op("neg", (node,), node.dtype)
    typed, _ = accumulated(build, value, scope, None, None)
    own = typed.node.dtype
    natural = summand(build, value, scope)
    if not isinstance(natural.type, DType):
        return build.convert(natural, shared or accumulator(dtype), value.span)
    wanted = shared or _wider(own, accumulator(dtype))
    return typed.node if own == wanted else accumulated(build, value, scope, None, Reads(wanted))[0].node


def _wider(own: DType, other: DType) -> DType:
    """The dtype that sums and products of either are exact in, as far as one is; of integers the one of more bits,
    since those wrap."""
    if own.is_integer and other.is_integer:
        return own if own.bits >= other.bits else other
    return promote(own, other)


def _name_equations(equations: Sequence[ir.Equation]) -> list[ir.Equation]:
    """Gives the second and later equations of a tensor names of their own: `y`, `y_1`, `y_2`."""
    tensors = {equation.tensor for equation in equations}
    taken: set[str] = set()
    named = []
    for equation in equations:
        name, count = equation.tensor, 0
        while name in taken or (name in tensors and name != equation.tensor):
            count += 1
            name = f"{equation.tensor}_{count}"
        taken.add(name)
        named.append(replace(equation, name=name))
    return named


def _core_tensor(tensor: Handle, types: Mapping[Handle, DType], outputs: frozenset[Handle]) -> ir.Tensor:
    rank = tensor.rank
    assert rank is not None, "a tensor with a definition has a rank"
    role: Literal["input", "output", "local"] = (
        "input" if tensor.role == "input" else "output" if tensor in outputs else "local"
    )
    dtype = types.get(tensor, tensor.dtype_given)
    assert dtype is not None, "a parameter that nothing reads has a dtype of its own"
    return ir.Tensor(tensor.name, dtype, tensor.dims, role, rank, tensor.span)


def _check_inlined_dtypes(state: State, kept: frozenset[Handle], types: Mapping[Handle, DType]) -> None:
    for tensor, wanted, parameter, span in state.dtypes_due:
        if tensor in kept and types[tensor] != wanted:
            raise DTypeError(
                f"parameter '{parameter}' is {wanted} and is given '{tensor.name}', which is {types[tensor]}",
                where=span,
                fix=f"convert it: po.cast({tensor.name}, {wanted}).",
                facts={"parameter": parameter, "dtype": str(types[tensor])},
            )


def dtype_now(tensor: Handle) -> DType:
    """The dtype that the definitions written so far give."""
    return tensor.dtype_given or Reader().infer_dtypes(_reachable(tensor.state, [tensor]))[tensor]
