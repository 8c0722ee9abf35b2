"""From a loop program to LLVM IR: the kernel, the bodies of its parallel loops, and what they need around them.

The result is the text of a module with one external function, called as `abi` says. Loops are vectorised, unrolled
and register-blocked here as the loop program asks; the module needs promotion of stack slots (SROA) and no other
optimisation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import TYPE_CHECKING, Literal

from polyopt import picks
from polyopt.classes import dataclass
from polyopt.codegen_c import abi, screening, workspace
from polyopt.codegen_c.expressions import Context, Expressions
from polyopt.codegen_c.flatten import stored_buffers, trip_of
from polyopt.codegen_c.lanes import LanePlanner
from polyopt.codegen_c.llvm_text import Function, Module, Value
from polyopt.codegen_c.memory import Place
from polyopt.codegen_c.statements import Statements
from polyopt.codegen_c.values import Linear, binary, compare, convert, int64, intrinsic, linear, scalar_of, splat
from polyopt.dots import Dot
from polyopt.dsl.ir import Const
from polyopt.dtypes import DType
from polyopt.loops.ir import (
    Alloc,
    Buffer,
    Expr,
    For,
    LoopProgram,
    Stmt,
    buffers_used,
    compares_numbers,
    index_var,
    integer,
    walk,
)
from polyopt.loops.repeats import Form, forms, repeated

if TYPE_CHECKING:
    from polyopt.codegen_c import vmath

Numerics = Literal["default", "strict", "fast"]

LEAST_CALLED = 32
"""Instructions of a nest from which on it may be a function of its own: what is shorter may share registers and tests
with what stands beside it."""

MOST_IN_ONE = 8192
"""Instructions of nests, beyond which each is a function of its own: LLVM's work grows faster than a function does."""

# Chunks of a parallel loop: enough to balance any number of threads, and the same for each of them.
MOST_CHUNKS = 4096

_FLAGS: Mapping[str, str] = {"default": "contract ", "strict": "", "fast": "reassoc nsz arcp contract afn "}

_REPORT = """define internal void @polyopt_report(ptr %words, i64 %site, i64 %index, i64 %extent) noinline cold {
  %slot = getelementptr i64, ptr %words, i64 2
  %record = load ptr, ptr %slot
  %old = load i64, ptr %record
  %free = icmp eq i64 %old, 0
  br i1 %free, label %write, label %done
write:
  %number = add i64 %site, 1
  store i64 %number, ptr %record
  %where = getelementptr i64, ptr %record, i64 1
  store i64 %index, ptr %where
  %size = getelementptr i64, ptr %record, i64 2
  store i64 %extent, ptr %size
  br label %done
done:
  ret void
}
"""


@dataclass(frozen=True, slots=True)
class LlvmModule:
    """A kernel as LLVM IR.

    text:          the module; neither triple nor data layout is set
    entry:         symbol of the kernel, `void entry(ptr words)`, see `abi`
    shared_bytes:  workspace that the threads share
    private_bytes: workspace of each worker slot, behind the shared block
                   (numbers for a static kernel, else i64 expressions over the program's sizes)
    """

    text: str
    entry: str
    shared_bytes: int | Expr
    private_bytes: int | Expr


def emit(
    program: LoopProgram,
    *,
    vector_bits: int,
    numerics: str = "default",
    dots: Sequence[Dot] = (),
    has_scaling: bool = False,
    most_lines: int | None = None,
    registers: Sequence[str] = (),
) -> LlvmModule:
    """The kernel of a verified loop program.

    vector_bits: width of the vectors to use; 128, 256 or 512
    dots:        the instructions that the processor has for groups
    numerics:    "strict" contracts no multiply-add; "default" does; "fast" also lets LLVM reassociate; none does where
                 numbers are compared that are computed for it
    has_scaling: whether the processor scales vectors of 512 bits by powers of two, as AVX-512 does
    most_lines:  of instructions, beyond which `llvm_text.TooLong` is raised
    registers:   of vectors, as LLVM calls them, where a tile may ask for all of them
    """
    module = Module(vector_bits, most_lines, registers)
    kernel = _Kernel(program, numerics, dots, _Math(vector_bits, has_scaling), module)
    kernel.write()
    return LlvmModule(kernel.text(), kernel.entry, _folded(kernel.shared_bytes), _folded(kernel.private_bytes))


def _folded(size: Expr) -> int | Expr:
    return int(size.value) if isinstance(size, Const) else size


class _Kernel:
    """The module under construction."""

    def __init__(
        self, program: LoopProgram, numerics: str, dots: Sequence[Dot], functions: _Math, module: Module
    ) -> None:
        self.program = program
        self.entry = f"polyopt_{''.join(c if c.isascii() and c.isalnum() else '_' for c in program.name)}"
        self.flags = "" if compares_numbers(program.body) else _FLAGS[numerics]
        self.orders_zeros = numerics == "strict"
        plain = tuple(dot for dot in dots if not dot.is_screened)
        may_contract = "contract" in self.flags
        self.dots = dots if may_contract and program.screened else plain
        self.plain_dots = plain
        self.module = module
        self.math = functions
        allocated = [inner.buffer for inner in walk(program.body) if isinstance(inner, Alloc)]
        names = {name for pair in program.screened for name in pair}
        self.screened = [buffer for buffer in program.arguments if buffer.name in names]
        buffers = (*program.arguments, *program.workspace, *allocated, *screening.buffers(self.screened))
        self.lanes = LanePlanner(module.vector_bits, {buffer.name: buffer.dtype for buffer in buffers}, plain)
        self.called = _called(program, self.lanes)
        self.nests: dict[Hashable, str] = {}
        self.shared_offsets, self.shared_bytes = workspace.offsets(program.workspace, program.body, self.called)
        self.private_bytes = workspace.private_bytes(program.body)

    def write(self) -> None:
        f = Function(self.module, self.entry, [("ptr", "words")])
        writer = _FunctionWriter(
            self, f, Value("%words", "ptr"), self.plain_dots, slot=int64(0), body=self.program.body, is_worker=False
        )
        if self.dots == self.plain_dots:
            writer.write_program()
        else:
            with_all = partial(writer.write_program, self.dots)
            f.branch(writer.are_large(), with_all, partial(writer.write_program, self.plain_dots))
        self.fence(f, self.program.body)
        f.finish()

    def fence(self, f: Function, body: Stmt) -> None:
        """Lets other threads see what was stored past the caches before they see that this one is done."""
        if stored_buffers(body) & {buffer.name for buffer in self.program.arguments if buffer.passes}:
            f.effect("llvm.x86.sse.sfence", [])

    def text(self) -> str:
        report = _REPORT if self.module.uses("@polyopt_report") else ""
        return self.module.text(self.math.declarations(), self.math.helpers() + report)


def _called(program: LoopProgram, lanes: LanePlanner) -> dict[int, tuple[For, Form]]:
    """By identity, the nests that are functions of their own: those that the program repeats, or all of a long one."""
    passing = {buffer.name for buffer in program.arguments if buffer.passes}
    nests = [] if program.screened else forms(program)
    if len(nests) < 2:
        return {}
    is_long = sum(lanes.cost(nest) for nest, _ in nests) > MOST_IN_ONE
    again = repeated(nests)
    worth = [(nest, form) for nest, form in (nests if is_long else again) if lanes.cost(nest) >= LEAST_CALLED]
    choices = {"worth a call": worth, "repeated": again, "all": nests, "none": []}
    chosen = choices[picks.choose("nests that are functions", "worth a call", lambda: choices)]
    return {id(nest): (nest, form) for nest, form in chosen if passing.isdisjoint(form.buffers)}


class _Math:
    """The vector math functions that a module uses. They are opened with the first: few kernels use any."""

    def __init__(self, vector_bits: int, has_scaling: bool) -> None:
        self._attributes = f'"prefer-vector-width"="{vector_bits}"'
        self._has_scaling = has_scaling
        self._module: vmath.LlvmModule | None = None

    def call(self, f: Function, name: str, dtype: DType, operands: list[Value]) -> Value:
        from polyopt.codegen_c import vmath

        self._module = self._module or vmath.LlvmModule(self._attributes, self._has_scaling)
        lanes = max(operand.lanes for operand in operands)
        values = [splat(f, operand, lanes) for operand in operands]
        builder = vmath.LlvmBuilder(f.pure_text, dtype, lanes, self._module)
        result = vmath.emit_call(builder, name, dtype, tuple(value.text for value in values))
        return f.named(result, values[0].scalar, lanes)

    def declarations(self) -> Iterable[str]:
        return self._module.declarations | self._module.constants if self._module else ()

    def helpers(self) -> str:
        definitions = self._module.definitions if self._module else {}
        return "\n".join(definitions[name] for name in sorted(definitions))


_NOTHING = integer(0)


class _FunctionWriter:
    """One function of the kernel: its view of the arguments, and its statements."""

    def __init__(
        self,
        kernel: _Kernel,
        f: Function,
        words: Value,
        dots: Sequence[Dot],
        *,
        slot: Value,
        body: Stmt,
        is_worker: bool,
        private_used: Expr = _NOTHING,
        given: frozenset[str] | None = None,
    ) -> None:
        """dots:         the instructions for groups
        body:         what the function runs
        is_worker:    this is the body of a parallel loop, so parallel loops inside run serially
        private_used: bytes of each slot's private block that buffers of the loops around have in one of the slots
        given:        buffers whose addresses are parameters, where this is a nest that is called
        """
        self.kernel = kernel
        self.given = given
        self.f = f
        f.flags = kernel.flags
        f.orders_zeros = kernel.orders_zeros
        self.words = words
        self.slot = slot
        self.is_worker = is_worker
        self.x = Expressions(f, kernel.math, words)
        self.sizes = self._sizes()
        self.private_used = private_used
        self._place_arguments(buffers_used(body))
        self._use(dots)

    def _use(self, dots: Sequence[Dot]) -> None:
        self.dots = dots
        self.statements = Statements(self.x, self.kernel.lanes, self._parallel, self._allocate, dots, self._calls())

    def write_program(self, dots: Sequence[Dot] | None = None) -> None:
        """The whole program, with other instructions for groups where some are given."""
        if dots is not None:
            self._use(dots)
        self.statements.statement(self.kernel.program.body, Context(self.sizes))

    def _calls(self) -> dict[int, Callable[[], None]]:
        """By identity of a nest that is a function of its own, what writes a call of it; nothing inside such a nest."""
        is_called = self.given is not None
        called = {} if self.is_worker or is_called else self.kernel.called
        return {nest: partial(self._call, *found) for nest, found in called.items()}

    def _call(self, nest: For, form: Form) -> None:
        """A nest as a call of a function of its buffers, which is written where there is none yet for its form."""
        f, nests, places = self.f, self.kernel.nests, [self.x.places[name] for name in form.buffers]
        if form.key not in nests:
            nests[form.key] = self.kernel.module.fresh("polyopt_nest")
            self._write_nest(nests[form.key], nest, places)
        given = ", ".join(str(value) for value in (self.words, *(place.base for place in places)))
        f.line(f"call void @{nests[form.key]}({given})")
        f.clobber(form.buffers)

    def _write_nest(self, symbol: str, nest: For, places: Sequence[Place]) -> None:
        bases = [f"buffer{number}" for number in range(len(places))]
        f = Function(self.kernel.module, symbol, [("ptr", "words"), *(("ptr", base) for base in bases)], "internal")
        words = Value("%words", "ptr")
        given = frozenset(place.name for place in places)
        writer = _FunctionWriter(
            self.kernel, f, words, self.dots, slot=int64(0), body=nest, is_worker=False, given=given
        )
        for base, place in zip(bases, places, strict=True):
            writer.place(place.buffer, Value(f"%{base}", "ptr"), place.alignment)
        writer.statements.statement(nest, Context(writer.sizes))
        f.finish()

    def are_large(self) -> Value:
        """Whether the elements of the arguments that are screened are large enough for all instructions."""
        arguments, context = self.kernel.screened, Context(self.sizes)
        for argument in arguments:
            self.place(screening.bits_of(argument), self.x.places[argument.name].base, 1)
        self.statements.statement(screening.look(arguments), context)
        return self.x.value(screening.are_large(arguments, self.kernel.program.screened), context)

    # --- arguments and workspace ---------------------------------------------------------------------------

    def word(self, number: int, scalar: str) -> Value:
        """A word of the argument block."""
        return self.read_word(self.words, number, scalar)

    def read_word(self, block: Value, number: int, scalar: str) -> Value:
        f = self.f
        place = f.instruction(f"getelementptr i64, {block}, i64 {number}", "ptr", 1, [block])
        return f.load(scalar, 1, place, 8, "")

    def _sizes(self) -> dict[str, Linear]:
        program = self.kernel.program
        first = abi.FIRST_ARGUMENT + len(program.arguments)
        words = {name: self.word(first + number, "i64") for number, name in enumerate(program.sizes)}
        return {name: linear(self.x.bounded(value)) for name, value in words.items()}

    def _place_arguments(self, used: Collection[str]) -> None:
        """The addresses of the arguments, and of what is used of the workspace: each depends on the sizes of others."""
        program = self.kernel.program
        for number, buffer in enumerate(program.arguments):
            base = self.word(abi.FIRST_ARGUMENT + number, "ptr")
            self.place(buffer, base, buffer.dtype.itemsize if buffer.aligned else 1)
        for buffer in program.arguments:
            self._keep(buffer)
        for buffer in (buffer for buffer in program.workspace if buffer.name in used):
            self.place(buffer, self._workspace_address(self.kernel.shared_offsets[buffer.name]), buffer.dtype.itemsize)

    def _keep(self, buffer: Buffer) -> None:
        """Note whether a buffer that passes the caches is in the memory of one that is read in this call, or small."""
        f, places, context = self.f, self.x.places, Context(self.sizes)
        base = places[buffer.name].base
        reasons = [compare(f, "eq", base, places[name].base) for name in buffer.in_place_of]
        for size, most in buffer.outgrows:
            reasons.append(compare(f, "sle", scalar_of(f, self.x.uniform(size, context)), int64(most)))
        bits = [convert(f, "zext", reason, "i64") for reason in reasons]
        if bits:
            kept = reduce(partial(binary, f, "or"), bits)
            places[buffer.name] = replace(places[buffer.name], kept=kept)

    def place(self, buffer: Buffer, base: Value, alignment: int) -> None:
        context = Context(self.sizes)
        strides = tuple(self.x.uniform(stride, context) for stride in workspace.byte_strides(buffer))
        extents = tuple(self.x.uniform(extent, context) for extent in buffer.shape)
        self.x.places[buffer.name] = Place(buffer, base, strides, extents, alignment)

    def _workspace_address(self, offset: Expr) -> Value:
        f = self.f
        block = self.word(abi.WORKSPACE, "ptr")
        distance = scalar_of(f, self.x.uniform(offset, Context(self.sizes)))
        return f.instruction(f"getelementptr i8, {block}, {distance}", "ptr", 1, [block, distance], "cheap")

    def _allocate(self, buffer: Buffer, write: Callable[[], None]) -> None:
        """Runs `write` with `buffer` in the private block of this worker's slot."""
        kernel, f = self.kernel, self.f
        start = workspace.calculated("add", kernel.shared_bytes, self.private_used)
        block = self._workspace_address(start)
        size = scalar_of(f, self.x.uniform(kernel.private_bytes, Context(self.sizes)))
        distance = binary(f, "mul", self.slot, size)
        base = f.instruction(f"getelementptr i8, {block}, {distance}", "ptr", 1, [block, distance], "cheap")
        self.place(buffer, base, buffer.dtype.itemsize)
        outer = self.private_used
        self.private_used = workspace.calculated("add", outer, workspace.size_bytes(buffer))
        write()
        self.private_used = outer

    # --- parallel loops ------------------------------------------------------------------------------------

    def _parallel(self, loop: For, context: Context) -> None:
        if self.is_worker:
            self.statements.serial(loop, context)
            return
        outline = _Outline(self, loop, context)
        trip = trip_of(self.x, loop, context)
        count = self.statements.count(trip)
        self.f.branch(compare(self.f, "sgt", count, int64(0)), partial(outline.call, count), kind="guard")
        outline.write_body()


class _Outline:
    """A parallel loop: its body as a function of its own, and the call of the pool.

    The function gets a block of words: the kernel's argument block, the loop variables around, and the addresses of
    the buffers it uses that are neither arguments nor shared workspace, or that were given to the function around. (A
    place of an allocation that has ended may still be known, under an address that is not computed on the way here.)
    """

    def __init__(self, outer: _FunctionWriter, loop: For, context: Context) -> None:
        self.outer = outer
        self.loop = loop
        self.context = context
        self.symbol = outer.kernel.module.fresh("polyopt_body")
        kernel = outer.kernel
        shared = {buffer.name for buffer in (*kernel.program.arguments, *kernel.program.workspace)}
        self.variables = [name for name in context.env if name not in outer.sizes]
        used = buffers_used(loop.body) - (shared - (outer.given or frozenset()))
        self.places = [place for name, place in outer.x.places.items() if name in used]

    def call(self, count: Value) -> None:
        """Fills the block and runs the chunks, on the pool if there is one."""
        f, x = self.outer.f, self.outer.x
        values = [self.outer.words]
        values += [scalar_of(f, x.uniform(index_var(name), self.context)) for name in self.variables]
        values += [place.base for place in self.places]
        block = f.alloca(f"[{len(values)} x i64]", 8)
        for number, value in enumerate(values):
            f.write(f.instruction(f"getelementptr i64, {block}, i64 {number}", "ptr", 1, [block]), value)
        size = max(1, self.loop.chunk)
        chunks = binary(f, "udiv", binary(f, "add", count, int64(size - 1)), int64(size))
        chunks = intrinsic(f, "smin", chunks, int64(MOST_CHUNKS))
        pool = self.outer.word(abi.POOL_RUN, "ptr")
        has_pool = f.instruction(f"icmp ne {pool}, null", "i1", 1, [pool])
        f.branch(
            has_pool,
            lambda: f.line(f"call void {pool.text}(ptr @{self.symbol}, {block}, {chunks})"),
            lambda: f.line(f"call void @{self.symbol}({block}, i64 0, i64 1, i64 0)"),
        )
        f.clobber(x.places)

    def write_body(self) -> None:
        kernel = self.outer.kernel
        parameters = [("ptr", "block"), ("i64", "chunk"), ("i64", "chunks"), ("i64", "slot")]
        f = Function(kernel.module, self.symbol, parameters, linkage="internal")
        block = Value("%block", "ptr")
        words = f.load("ptr", 1, block, 8, "")
        chunk, chunks, slot = (Value(f"%{name}", "i64") for name in ("chunk", "chunks", "slot"))
        dots, private_used = self.outer.dots, self.outer.private_used
        writer = _FunctionWriter(
            kernel, f, words, dots, slot=slot, body=self.loop, is_worker=True, private_used=private_used
        )
        env = dict(writer.sizes)
        for number, name in enumerate(self.variables, 1):
            env[name] = linear(writer.x.bounded(writer.read_word(block, number, "i64")))
        for number, place in enumerate(self.places, 1 + len(self.variables)):
            writer.place(place.buffer, writer.read_word(block, number, "ptr"), place.alignment)
        context = Context(env)
        count = writer.statements.count(trip_of(writer.x, self.loop, context))
        first, last = (_share(f, count, number, chunks) for number in (chunk, binary(f, "add", chunk, int64(1))))
        writer.statements.iterations(self.loop, first, last, context)
        kernel.fence(f, self.loop.body)
        f.finish()


def _share(f: Function, count: Value, chunk: Value, chunks: Value) -> Value:
    """The first iteration of a chunk, so that chunks differ by at most one iteration."""
    return binary(f, "udiv", binary(f, "mul", count, chunk), chunks)
