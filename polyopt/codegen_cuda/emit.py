"""A loop program for a GPU as CUDA C++: one kernel per nest of grid loops, in the order of the program.

What stands on the host is not text: the value's `steps` say which kernels run, in which order and how often. Sums of
floats are combined in an order that depends on the kernel's shape alone, so that the same inputs give the same bits.
"""

from __future__ import annotations

from dataclasses import field

from polyopt.classes import dataclass
from polyopt.codegen_c.identifiers import external, identifiers, symbol_of
from polyopt.codegen_cuda.alignment import facts
from polyopt.codegen_cuda.expressions import helpers, in_cuda
from polyopt.codegen_cuda.intervals import Interval, of_loop
from polyopt.codegen_cuda.kernel import KernelPrinter
from polyopt.codegen_cuda.partition import has_grid
from polyopt.codegen_cuda.reductions import Reductions
from polyopt.codegen_cuda.shapes import common, shape_of
from polyopt.codegen_cuda.source import Branch, CudaKernel, CudaSource, Launch, Repeat, Step
from polyopt.codegen_cuda.threads import Names
from polyopt.loops.ir import Alloc, Block, For, If, LoopProgram, Stmt, compares_numbers, walk
from polyopt.target import STATIC_SHARED_BYTES

_TAKEN = frozenset(
    f"""
    threadIdx blockIdx blockDim gridDim warpSize block value other parts thread dim3 min max half uint ushort char1
    int2 int3 int4 float2 float3 float4 double2 uint2 uint3 uint4 {" ".join(f"block_{n} thread_{n}" for n in range(8))}
    """.split()
)
"""Names of CUDA and of this printer that an argument or a loop must not take."""


def emit(program: LoopProgram, *, contract: bool = True, most_shared: int = STATIC_SHARED_BYTES) -> CudaSource:
    """The kernels of a program that `partition` has cut.

    contract: whether a product and a sum may become one operation; they do not where numbers are compared that are
              computed for it
    most_shared: bytes of shared memory that a block may have; more than 48 KiB are asked for at the launch
    Raises `ScheduleError` where threads would have to share what they cannot.
    """
    writer = _Writer(program, most_shared)
    steps = writer.host(program.body)
    body = in_cuda("\n".join(writer.texts))
    functions = in_cuda("\n".join(writer.reductions.functions.values()))
    parts = [
        _description(program),
        '#include "po_device.h"',
        helpers(functions + body),
        functions,
        body,
    ]
    return CudaSource(
        "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n",
        tuple(writer.kernels),
        steps,
        program.arguments,
        program.written,
        program.workspace,
        program.sizes,
        program.sites,
        contract and not compares_numbers(program.body),
    )


def _description(program: LoopProgram) -> str:
    lines = [f"// {program.name}"]
    for number, site in enumerate(program.sites):
        lines.append(f"// check {number}: dimension {site.dimension} of {site.array}")
    return "\n".join(lines)


@dataclass(slots=True)
class _Writer:
    """Writes the kernels one by one.

    most_shared: bytes of shared memory of a block; given: what divides sizes, where the host has asked
    around:      where the variables of the loops lie that the host is in
    """

    program: LoopProgram
    most_shared: int
    kernels: list[CudaKernel] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    given: dict[str, int] = field(default_factory=dict)
    around: dict[str, Interval] = field(default_factory=dict)
    names: Names = field(init=False)
    reductions: Reductions = field(init=False)
    symbol: str = field(init=False)

    def __post_init__(self) -> None:
        program = self.program
        allocated = [inner.buffer for inner in walk(program.body) if isinstance(inner, Alloc)]
        buffers = {b.name: b for b in (*program.arguments, *program.workspace, *allocated)}
        self.symbol = symbol_of(program)
        names = identifiers(program, external() | _TAKEN)
        self.reductions = Reductions(names)
        pointers = tuple(buffer.name for buffer in (*program.arguments, *program.workspace))
        self.names = Names(names, buffers, pointers, program.sizes)

    def host(self, statement: Stmt) -> tuple[Step, ...]:
        """What the host does for a statement."""
        is_one = not has_grid(statement) and (not isinstance(statement, Block) or shape_of(statement) is not None)
        if is_one or (isinstance(statement, For) and statement.kind == "grid"):
            return (self.launch(statement),)
        match statement:
            case Block(body):
                return self.sequence(body)
            case For(var=var, lower=lower, upper=upper, step=step):
                around = self.around
                self.around = {**around, var: of_loop(statement, around)}
                inner = self.host(statement.body)
                self.around = around
                return (Repeat(var, lower, upper, inner, step),)
            case If(condition, then, otherwise):
                given = self.given
                self.given = {**given, **facts(condition)}
                first = self.host(then)
                self.given = given
                return (Branch(condition, first, () if otherwise is None else self.host(otherwise)),)
            case _:
                raise AssertionError("what is left on the host is blocks, loops and branches")

    def sequence(self, body: tuple[Stmt, ...]) -> tuple[Step, ...]:
        """Statements in order; neighbors without a grid share a kernel, where their blocks have one shape."""
        steps: list[Step] = []
        together: list[Stmt] = []
        threads: tuple[int, ...] = ()
        for statement in body:
            own = None if has_grid(statement) else shape_of(statement)
            shared = None if own is None else common((threads, own))
            if together and shared is None:
                steps.append(self.launch(_joined(together)))
                together = []
            if own is None:
                steps, threads = [*steps, *self.host(statement)], ()
            else:
                together.append(statement)
                threads = own if shared is None else shared
        if together:
            steps.append(self.launch(_joined(together)))
        return tuple(steps)

    def launch(self, statement: Stmt) -> Launch:
        name = f"{self.symbol}_{len(self.kernels)}"
        while name in self.names.names:
            name += "_"
        printer = KernelPrinter(name, statement, self.names, self.reductions, self.given, self.most_shared, self.around)
        kernel, text = printer.kernel()
        self.kernels.append(kernel)
        self.texts.append(text)
        return Launch(name)


def _joined(statements: list[Stmt]) -> Stmt:
    return statements[0] if len(statements) == 1 else Block(tuple(statements))
