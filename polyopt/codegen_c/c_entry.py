"""A function with the signature of the printed C around a compiled kernel, as LLVM IR.

    int64_t name(const float *x, float *out, int64_t N);

It allocates the workspace, fills the block of words that `abi` describes, and returns what the printed C returns: 0,
n > 0 if run-time check n - 1 failed, or -1 if memory ran out. Whoever links the object decides about threads: where
`polyopt_run` and `polyopt_slots` are defined, parallel loops go through them, else they run serially.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from polyopt.codegen_c import abi
from polyopt.codegen_c.emit import LlvmModule
from polyopt.codegen_c.identifiers import symbol_of
from polyopt.codegen_c.workspace import calculated
from polyopt.dsl.ir import Const, Op, Var
from polyopt.loops.ir import Expr, For, LoopProgram, integer, walk

RUN = "polyopt_run"
SLOTS = "polyopt_slots"

_SERIAL = "  %slots = add i64 1, 0\n"
_THREADED = f"""\
  %asks = icmp ne ptr @{SLOTS}, null
  br i1 %asks, label %ask, label %known
ask:
  %answer = call i64 @{SLOTS}()
  br label %known
known:
  %slots = phi i64 [ 1, %entry ], [ %answer, %ask ]
"""
_OPERATIONS: Mapping[str, str] = {"add": "add", "sub": "sub", "mul": "mul", "floordiv": "sdiv"}


def with_c_entry(program: LoopProgram, module: LlvmModule) -> str:
    """The text of the kernel's module with the C function added."""
    is_parallel = any(isinstance(inner, For) and inner.kind == "parallel" for inner in walk(program.body))
    declarations = ["declare ptr @malloc(i64)", "declare void @free(ptr)"]
    if is_parallel:
        declarations += [f"declare extern_weak void @{RUN}(ptr, ptr, i64)", f"declare extern_weak i64 @{SLOTS}()"]
    text = _internal(module)
    return "\n".join([text, *declarations, "", *_function(program, module, is_parallel=is_parallel), ""])


def _internal(module: LlvmModule) -> str:
    """The module with its kernel a part of itself: libraries of one name that a process loads would share it."""
    name = f"void @{module.entry}("
    assert module.text.count(f"define {name}") == 1, "the kernel is defined once"
    return module.text.replace(f"define {name}", f"define internal {name}")


def _function(program: LoopProgram, module: LlvmModule, *, is_parallel: bool) -> Iterator[str]:
    pointers = [f"ptr %array{number}" for number in range(len(program.arguments))]
    sizes = [f"i64 %size{number}" for number in range(len(program.sizes))]
    words = [f"ptr {f'@{RUN}' if is_parallel else 'null'}", "ptr %memory", "ptr %record", "i64 %slots"]
    assert len(words) == abi.FIRST_ARGUMENT
    words += [*pointers, *sizes]
    arithmetic = _Arithmetic(program.sizes)
    yield f"define i64 @{symbol_of(program)}({', '.join([*pointers, *sizes])}) {{"
    yield "entry:"
    yield f"  %block = alloca [{len(words)} x i64], align 8"
    yield f"  %record = alloca [{abi.ERROR_RECORD_WORDS} x i64], align 8"
    yield f"  store [{abi.ERROR_RECORD_WORDS} x i64] zeroinitializer, ptr %record"
    yield (_THREADED if is_parallel else _SERIAL).rstrip("\n")
    needed = arithmetic.operand(_bytes(module))
    yield from arithmetic.lines
    yield f"  %start = call ptr @malloc(i64 {needed})"
    yield "  %failed = icmp eq ptr %start, null"
    yield "  br i1 %failed, label %without, label %ready"
    yield "ready:"
    yield "  %address = ptrtoint ptr %start to i64"
    yield f"  %above = add i64 %address, {abi.ALIGNMENT - 1}"
    yield f"  %aligned = and i64 %above, {-abi.ALIGNMENT}"
    yield "  %memory = inttoptr i64 %aligned to ptr"
    for number, word in enumerate(words):
        yield f"  %word{number} = getelementptr i64, ptr %block, i64 {number}"
        yield f"  store {word}, ptr %word{number}"
    yield f"  call void @{module.entry}(ptr %block)"
    yield "  call void @free(ptr %start)"
    yield "  %result = load i64, ptr %record"
    yield "  ret i64 %result"
    yield "without:"
    yield "  ret i64 -1"
    yield "}"


_SLOTS_NAME = "slots of a call"


def _bytes(module: LlvmModule) -> Expr:
    """What a call allocates: the workspace and room to align it."""
    shared, private = (integer(n) if isinstance(n, int) else n for n in (module.shared_bytes, module.private_bytes))
    every = calculated("mul", private, Var(_SLOTS_NAME, integer(0).dtype))
    return calculated("add", calculated("add", shared, every), integer(abi.ALIGNMENT))


class _Arithmetic:
    """Writes the arithmetic of workspace sizes, one instruction a line."""

    def __init__(self, sizes: tuple[str, ...]) -> None:
        self.lines: list[str] = []
        self._values = {name: f"%size{number}" for number, name in enumerate(sizes)} | {_SLOTS_NAME: "%slots"}

    def operand(self, expr: Expr) -> str:
        """The value of an expression of `workspace`."""
        match expr:
            case Const(value):
                return str(int(value))
            case Var(name):
                return self._values[name]
            case Op("maximum", (left, right)):
                a, b = self.operand(left), self.operand(right)
                return self._add(f"select i1 {self._add(f'icmp sgt i64 {a}, {b}')}, i64 {a}, i64 {b}")
            case Op(name, (left, right)):
                return self._add(f"{_OPERATIONS[name]} i64 {self.operand(left)}, {self.operand(right)}")
        raise AssertionError(f"sizes of workspace are no more than sums and products, but there is {expr}")

    def _add(self, instruction: str) -> str:
        name = f"%n{len(self.lines)}"
        self.lines.append(f"  {name} = {instruction}")
        return name
