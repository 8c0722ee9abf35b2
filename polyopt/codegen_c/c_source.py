"""A loop program as standalone C11: one function on plain pointers, readable, and correct where C is not careful.

    int64_t name(const float *x, float *out, int64_t N);

It returns 0, or n > 0 if run-time check n - 1 failed (results are then not to be used), or -1 if memory ran out.
Compile with `-std=c11 -lm`, for strict numerics also with `-ffp-contract=off`; add `-fopenmp` for threads in a text
printed with OpenMP. Loops that may run in parallel or in vector lanes say so in a comment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

from polyopt.codegen_c import c_helpers
from polyopt.codegen_c.c_expressions import CExpressions, cast, from_stored, is_typed, pointer_type, to_stored
from polyopt.codegen_c.c_helpers import helper_name, stored_type, value_type
from polyopt.codegen_c.expressions import combine_of
from polyopt.codegen_c.identifiers import Identifiers, identifiers, symbol_of
from polyopt.codegen_c.workspace import size_bytes
from polyopt.dsl.ir import Reducer
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    For,
    If,
    LoopProgram,
    Stmt,
    Store,
    expr_children,
    walk,
)
from polyopt.names import unused

_INDENT = "    "


def as_c(program: LoopProgram, *, openmp: bool = False) -> str:
    """The program as the text of a C file.

    openmp: put `#pragma omp parallel for` on parallel loops, for compilers with OpenMP
    """
    return _Printer(program, openmp).file()


def as_c_header(program: LoopProgram, *, conditions: Sequence[str] = ()) -> str:
    """The declaration of the function, as the text of a C header.

    conditions: on the sizes, which callers must meet
    """
    printer = _Printer(program, False)
    guard = f"PO_{printer.symbol.upper()}_H"
    lines = [
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        "#include <stdint.h>",
        "",
        "#ifdef __cplusplus",
        'extern "C" {',
        "#endif",
        "",
        *printer.description(conditions),
        f"{printer.signature()};",
        "",
        "#ifdef __cplusplus",
        "}",
        "#endif",
        "",
        f"#endif /* {guard} */",
        "",
    ]
    return "\n".join(lines)


class _Printer:
    """Prints one program."""

    def __init__(self, program: LoopProgram, openmp: bool) -> None:
        self._program = program
        self._openmp = openmp
        self._allocated = [inner.buffer for inner in walk(program.body) if isinstance(inner, Alloc)]
        self._buffers = {b.name: b for b in (*program.arguments, *program.workspace, *self._allocated)}
        self.symbol = symbol_of(program)
        self._names = identifiers(program, {self.symbol})
        self._x = CExpressions(self._names, self._buffers)
        self._reducers: list[Reducer] = []
        self._written = {inner.buffer for inner in walk(program.body) if isinstance(inner, Store)}

    # --- the file ------------------------------------------------------------------------------------------

    def file(self) -> str:
        body = "\n".join([f"{self.signature()}", "{", *self._function_body(), "}", ""])
        combines = "".join(self._combine_function(reducer) for reducer in self._reducers)
        helpers = c_helpers.definitions(combines + body)
        includes = [f"#include <{name}.h>" for name in ("math", "stdbool", "stdint", "stdlib", "string")]
        parts = ["\n".join(includes), helpers, combines, "\n".join(self.description()) + "\n" + body]
        return "\n\n".join(part.strip("\n") for part in parts if part.strip()) + "\n"

    def description(self, conditions: Sequence[str] = ()) -> list[str]:
        """A comment that says what the arguments are."""
        lines = [f"/* {self._program.name}"]
        for buffer in self._program.arguments:
            shape = "".join(f"[{self._x.text(extent)}]" for extent in buffer.callers_shape) or " (one element)"
            role = "result" if buffer.name in self._program.written else "input"
            layout = ""
            if buffer.strides is not None:
                layout = f", strides of {', '.join(map(self._x.text, buffer.strides)) or 'none'} bytes"
            lines.append(f"   {self._names.arrays[buffer.name]}: {role}, {buffer.dtype}{shape}{layout}")
        for number, site in enumerate(self._program.sites):
            lines.append(f"   check {number}: dimension {site.dimension} of {site.array}")
        lines.extend(f"   requires {condition}" for condition in conditions)
        lines.append("   Returns 0; n > 0: check n - 1 found a subscript out of range; -1: out of memory. */")
        return lines

    def signature(self) -> str:
        parameters = [
            f"{pointer_type(b.dtype, is_written=b.name in self._written)}{self._names.arrays[b.name]}"
            for b in self._program.arguments
        ]
        parameters += [f"int64_t {self._names.variables[size]}" for size in self._program.sizes]
        return f"int64_t {self.symbol}({', '.join(parameters) or 'void'})"

    def _combine_function(self, reducer: Reducer) -> str:
        kind = value_type(reducer.dtype)
        own = CExpressions(Identifiers({}, {}), {})  # its operands are called a and b, whatever else is
        value = own.value(combine_of(reducer), is_data=True).text
        return f"static inline {kind} {self._combine_name(reducer)}({kind} a, {kind} b)\n{{\n    return {value};\n}}\n"

    def _combine_name(self, reducer: Reducer) -> str:
        if reducer not in self._reducers:
            self._reducers.append(reducer)
        name = f"combine_{self._reducers.index(reducer)}"
        return unused(name if name != self.symbol else f"{name}_", self._names)

    def _function_body(self) -> list[str]:
        lines = ["int64_t error = 0;"]
        workspace = self._program.workspace
        for buffer in workspace:
            lines.append(self._allocation(buffer))
        inner = list(self._statement(self._program.body))
        if workspace:
            missing = " || ".join(f"!{self._names.arrays[buffer.name]}" for buffer in workspace)
            inner = [f"if ({missing}) {{", f"{_INDENT}error = -1;", "} else {", *_indented(inner), "}"]
            inner += [f"free({self._names.arrays[buffer.name]});" for buffer in workspace]
        return _indented([*lines, *inner, "return error;"])

    def _allocation(self, buffer: Buffer) -> str:
        kind = stored_type(buffer.dtype)
        size = self._x.text(size_bytes(buffer))
        return f"{kind} *{self._names.arrays[buffer.name]} = malloc((size_t)({size}) + 64);"

    # --- statements ----------------------------------------------------------------------------------------

    def _statement(self, statement: Stmt) -> Iterator[str]:
        match statement:
            case Block(body):
                for inner in body:
                    yield from self._statement(inner)
            case For():
                yield from self._loop(statement)
            case If(condition, then, otherwise):
                yield f"if ({self._x.text(condition)}) {{"
                yield from _indented(self._statement(then))
                if otherwise is not None:
                    yield "} else {"
                    yield from _indented(self._statement(otherwise))
                yield "}"
            case Alloc(buffer, body):
                yield from self._alloc(buffer, body)
            case Store():
                yield from self._store(statement)
            case _:
                assert_never(statement)

    def _loop(self, loop: For) -> Iterator[str]:
        var = self._names.variables[loop.var]
        lower, upper = self._x.text(loop.lower), self._x.compared(loop.upper)
        step = f"{var}++" if loop.step == 1 else f"{var} += {loop.step}"
        notes = [note for note in ("" if loop.kind == "serial" else loop.kind, loop.axis) if note and note != loop.var]
        if loop.kind == "parallel" and self._openmp:
            yield from ("#ifdef _OPENMP", "#pragma omp parallel for", "#endif")
        comment = f" /* {': '.join(notes)} */" if notes else ""
        yield f"for (int64_t {var} = {lower}; {var} < {upper}; {step}) {{{comment}"
        yield from _indented(self._statement(loop.body))
        yield "}"

    def _alloc(self, buffer: Buffer, body: Stmt) -> Iterator[str]:
        name = self._names.arrays[buffer.name]
        yield "{"
        if buffer.space == "local":
            count = 1
            for extent in buffer.shape:
                assert not expr_children(extent), "a local buffer has constant extents"
                count *= max(1, int(self._x.text(extent)))
            yield f"{_INDENT}{stored_type(buffer.dtype)} {name}[{count}];"
            yield from _indented(self._statement(body))
        else:
            yield f"{_INDENT}{self._allocation(buffer)}"
            yield f"{_INDENT}if ({name}) {{"
            yield from _indented(_indented(self._statement(body)))
            yield f"{_INDENT}}} else {{"
            yield f"{_INDENT * 2}error = -1;"
            yield f"{_INDENT}}}"
            yield f"{_INDENT}free({name});"
        yield "}"

    def _store(self, store: Store) -> Iterator[str]:
        line = f"{self._assignment(store)} /* {store.statement} */"
        guard = self._x.guard(store.buffer, store.indices, None, store.checks)
        yield line if guard is None else f"if ({guard.text}) {line}"

    def _assignment(self, store: Store) -> str:
        buffer = self._buffers[store.buffer]
        element = self._x.element(store.buffer, store.indices)
        value = self._x.value(store.value, is_data=True)
        reducer = store.reducer
        if reducer is not None:
            dtype = reducer.dtype
            if is_typed(buffer) and dtype == buffer.dtype and dtype.name in ("f32", "f64") and reducer.name in _UPDATE:
                return f"{element.text} {_UPDATE[reducer.name]} {value.text};"
            old = cast(from_stored(element, buffer.dtype), buffer.dtype, dtype)
            value = cast(self._x.combined(reducer, old, value, self._combine_name), dtype, buffer.dtype)
        stored = to_stored(value, buffer.dtype)
        if is_typed(buffer):
            return f"{element.text} = {stored.text};"
        address = self._x.address(store.buffer, store.indices, "char *")
        return f"{helper_name('store', buffer.dtype)}({address}, {stored.text});"


_UPDATE = {"sum": "+=", "prod": "*="}


def _indented(lines: Iterator[str] | list[str]) -> list[str]:
    return [line if line.startswith("#") else _INDENT + line for line in lines]
