"""Prints a loop program: as a readable loop nest, and as JSON, Graphviz and HTML."""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import reduce
from math import prod
from typing import Any, assert_never

from polyopt.dsl.ir import Cast, Const, Op, Reducer, Var
from polyopt.dtypes import bool_
from polyopt.loops.ir import (
    Alloc,
    Block,
    Buffer,
    Expr,
    For,
    If,
    Load,
    LoopProgram,
    Stmt,
    Store,
    substatements,
)

_INDENT = "    "

_INFIX: Mapping[str, tuple[int, str]] = {
    "or": (1, "|"),
    "xor": (2, "^"),
    "and": (3, "&"),
    "lt": (4, "<"),
    "le": (4, "<="),
    "gt": (4, ">"),
    "ge": (4, ">="),
    "eq": (4, "=="),
    "ne": (4, "!="),
    "shl": (5, "<<"),
    "shr": (5, ">>"),
    "add": (6, "+"),
    "sub": (6, "-"),
    "mul": (7, "*"),
    "truediv": (7, "/"),
    "floordiv": (7, "//"),
    "mod": (7, "%"),
    "pow": (9, "**"),
}
"""Operations between their operands: how tightly they bind, and their sign.

`&`, `|` and `^` bind looser than comparisons, as in logic; they are printed with parentheses around comparisons.
"""

_PREFIX: Mapping[str, tuple[int, str]] = {"neg": (8, "-"), "not": (8, "~")}
_ATOM = 10
_CHOICE = 0
_UPDATES: Mapping[str, str] = {"sum": "+=", "prod": "*=", "max": "max=", "min": "min=", "any": "|=", "all": "&="}


# --- expressions ----------------------------------------------------------------------------------------------


def expr_text(expr: Expr) -> str:
    """An expression as one would write it: `x[i, k] * w[k, j] + 1`. A mask that the choice around it repeats is
    shown once."""
    return _expr(_unrepeated(expr, frozenset()))[1]


def _unrepeated(expr: Expr, known: frozenset[Expr]) -> Expr:
    """The expression without the parts of masks that hold anyway: those in `known`."""
    match expr:
        case Op("select", (condition, then, otherwise), dtype):
            holds = known | frozenset(_conjuncts(condition))
            fails = known | {Op("not", (condition,), bool_)}
            return Op("select", (condition, _unrepeated(then, holds), _unrepeated(otherwise, fails)), dtype)
        case Op(name, args, dtype):
            return Op(name, tuple(_unrepeated(arg, known) for arg in args), dtype)
        case Cast(arg, dtype):
            return Cast(_unrepeated(arg, known), dtype)
        case Load(mask=mask) if mask is not None:
            left = [part for part in _conjuncts(mask) if part not in known]
            mask = reduce(lambda a, b: Op("and", (a, b), bool_), left) if left else None
            return replace(expr, mask=mask)
        case _:
            return expr


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Op) and condition.name == "and":
        for part in condition.args:
            yield from _conjuncts(part)
    else:
        yield condition


def _expr(expr: Expr) -> tuple[int, str]:
    """How tightly the outermost operation binds, and the text."""
    match expr:
        case Const():
            return _const(expr)
        case Var(name):
            return _ATOM, name
        case Cast(arg=arg, dtype=dtype):
            return _ATOM, f"{dtype}({expr_text(arg)})"
        case Load(mask=None):
            return _ATOM, _access(expr)
        case Load(mask=mask):
            assert mask is not None
            return _CHOICE, f"{_access(expr)} if {expr_text(mask)} else 0"
        case Op(name=name, args=args):
            return _op(name, args)
        case _:
            assert_never(expr)


def _const(const: Const) -> tuple[int, str]:
    if isinstance(const.value, float) and math.isfinite(const.value) and const.dtype.is_integer:
        text = str(int(const.value))
    elif const.dtype.is_bool:
        text = str(bool(const.value))
    elif const.dtype.is_float:
        text = repr(float(const.value))
    else:
        text = str(const.value)
    return (_PREFIX["neg"][0] if text.startswith("-") else _ATOM), text


def _op(name: str, args: tuple[Expr, ...]) -> tuple[int, str]:
    if name in _PREFIX:
        level, sign = _PREFIX[name]
        return level, sign + _wrapped(args[0], level)
    if name == "select":
        condition, then, otherwise = args
        return _CHOICE, f"{_wrapped(then, 1)} if {_wrapped(condition, 1)} else {_wrapped(otherwise, 1)}"
    if name not in _INFIX:
        names = {"minimum": "min", "maximum": "max"}
        return _ATOM, f"{names.get(name, name)}({', '.join(expr_text(arg) for arg in args)})"
    level, sign = _INFIX[name]
    left, right = args
    if name == "add" and (subtracted := _negated(right)) is not None:
        sign, right = "-", subtracted
    # a comparison of comparisons, and a logical operation on them, are clearer with parentheses
    inner = level + 1 if name not in ("and", "or", "xor") else 5
    outer = level if name in ("add", "sub", "mul") else inner
    tight = name in ("mul", "floordiv", "mod") and _is_index(left) and _is_index(right)
    space = "" if tight or name == "pow" else " "
    return level, f"{_wrapped(left, outer)}{space}{sign}{space}{_wrapped(right, inner)}"


def _negated(expr: Expr) -> Expr | None:
    """What is subtracted where `expr` is added: the opposite of a negative integer."""
    if isinstance(expr, Const) and expr.dtype.is_integer and expr.value < 0:
        return Const(-expr.value, expr.dtype)
    return None


def _is_index(expr: Expr) -> bool:
    return isinstance(expr, Const | Var) and expr.dtype.name == "i64"


def _wrapped(expr: Expr, level: int) -> str:
    """The text, in parentheses where its operation binds looser than `level`."""
    own, text = _expr(expr)
    return text if own >= level else f"({text})"


def _access(load: Load) -> str:
    return _element(load.buffer, load.indices, {check.dimension for check in load.checks})


def _element(buffer: str, indices: tuple[Expr, ...], checked: set[int]) -> str:
    texts = [f"check({expr_text(i)})" if d in checked else expr_text(i) for d, i in enumerate(indices)]
    return f"{buffer}[{', '.join(texts)}]" if texts else f"{buffer}[()]"


# --- buffers --------------------------------------------------------------------------------------------------


def buffer_text(buffer: Buffer) -> str:
    """Name, dtype, shape, layout where it is not contiguous, and size: `y: f32[32, 32]  # 4096 bytes`."""
    shape = ", ".join(map(expr_text, buffer.shape)) or "()"
    strides = "" if buffer.strides is None else f" strides ({', '.join(map(expr_text, buffer.strides))})"
    size = buffer_bytes(buffer)
    note = [] if size is None else [f"{size} bytes"]
    passes = "stored past the caches" + (" that it outgrows" if buffer.outgrows else "")
    note += [passes] if buffer.passes else []
    note += ["read ahead"] if buffer.ahead else []
    if buffer.aligned:
        note.append("aligned")
    strides += f" swizzled in {buffer.swizzled}" if buffer.swizzled else ""
    return f"{buffer.name}: {buffer.dtype}[{shape}]{strides}" + (f"  # {', '.join(note)}" if note else "")


def buffer_bytes(buffer: Buffer) -> int | None:
    """The bytes of the elements, padding not counted; None where an extent is symbolic."""
    extents = [extent.value for extent in buffer.shape if isinstance(extent, Const)]
    return prod(map(int, extents)) * buffer.dtype.itemsize if len(extents) == len(buffer.shape) else None


# --- statements -----------------------------------------------------------------------------------------------


def loop_text(program: LoopProgram) -> str:
    """The whole program as indented text, one loop, condition, buffer or store per line."""
    sizes = f"[{', '.join(program.sizes)}]" if program.sizes else ""
    lines = [f"kernel {program.name}{sizes}:"]
    for buffer in program.arguments:
        lines.append(f"{_INDENT}{'out' if buffer.name in program.written else 'in'} {buffer_text(buffer)}")
    for buffer in program.workspace:
        lines.append(f"{_INDENT}workspace {buffer_text(buffer)}")
    for pair in program.screened:
        lines.append(f"{_INDENT}screened {', '.join(pair)}  # at first, for products that dot instructions would lose")
    lines.append("")
    lines.extend(_INDENT + line for line in _lines(program.body))
    return "\n".join(lines) + "\n"


def _lines(statement: Stmt) -> Iterator[str]:
    head = head_text(statement)
    if head:
        yield head
    inner = "" if isinstance(statement, Block | Alloc) else _INDENT
    match statement:
        case If(then=then, otherwise=otherwise) if otherwise is not None:
            yield from (inner + line for line in _lines(then))
            yield "else:"
            yield from (inner + line for line in _lines(otherwise))
        case _:
            for part in substatements(statement):
                yield from (inner + line for line in _lines(part))


def head_text(statement: Stmt) -> str:
    """The line of a statement without what it contains; empty for a block."""
    match statement:
        case Block():
            return ""
        case For():
            return _for_text(statement)
        case If(condition=condition):
            return f"if {expr_text(condition)}:"
        case Alloc(buffer=buffer):
            return f"{buffer.space} {buffer_text(buffer)}"
        case Store():
            return f"{_store_text(statement)}  # {statement.statement}"
        case _:
            assert_never(statement)


def _for_text(loop: For) -> str:
    bounds = [expr_text(loop.upper)]
    if loop.step != 1 or not (isinstance(loop.lower, Const) and loop.lower.value == 0):
        bounds.insert(0, expr_text(loop.lower))
    if loop.step != 1:
        bounds.append(str(loop.step))
    kind = "" if loop.kind == "serial" else f"{loop.kind} "
    notes = [loop.axis] if loop.axis and loop.axis != loop.var else []
    if loop.kind in ("parallel", "grid") and loop.chunk != 1:
        notes.append(f"{loop.chunk} iterations a {'chunk' if loop.kind == 'parallel' else 'block'}")
    if loop.kind == "block":
        notes.append(f"{loop.chunk} threads")
    if loop.kind == "pipeline":
        notes.append(f"{loop.chunk} slots")
    return f"{kind}for {loop.var} in range({', '.join(bounds)}):" + (f"  # {', '.join(notes)}" if notes else "")


def _store_text(store: Store) -> str:
    target = _element(store.buffer, store.indices, {check.dimension for check in store.checks})
    value = expr_text(store.value)
    if store.reducer is None:
        return f"{target} = {value}"
    if store.reducer.name in _UPDATES:
        return f"{target} {_UPDATES[store.reducer.name]} {value}"
    return f"{target} = {_combined(store.reducer, target, value)}"


def _combined(reducer: Reducer, running: str, value: str) -> str:
    """A custom reduction's combine with its two values written in."""
    assert reducer.combine is not None, "a custom reducer has an expression"
    text = expr_text(reducer.combine)
    values = {"a": running, "b": value if re.fullmatch(r"[\w.]+|\w+\[[^]]*\]", value) else f"({value})"}
    return re.sub(r"\b[ab]\b", lambda match: values[match[0]], text)


# --- other formats --------------------------------------------------------------------------------------------


def loop_json(program: LoopProgram) -> str:
    """The program as JSON: nested statements, each with its `kind`; expressions as text."""
    value = {
        "name": program.name,
        "sizes": list(program.sizes),
        "arguments": [_buffer_fields(buffer) for buffer in program.arguments],
        "results": list(program.written),
        "workspace": [_buffer_fields(buffer) for buffer in program.workspace],
        "screened": [list(pair) for pair in program.screened],
        "body": _fields(program.body),
    }
    return json.dumps(value, indent=2) + "\n"


def _buffer_fields(buffer: Buffer) -> dict[str, Any]:
    return {
        "name": buffer.name,
        "dtype": str(buffer.dtype),
        "shape": [expr_text(extent) for extent in buffer.shape],
        "swizzled": buffer.swizzled,
        "strides": None if buffer.strides is None else [expr_text(stride) for stride in buffer.strides],
        "space": buffer.space,
        "bytes": buffer_bytes(buffer),
    }


def _fields(statement: Stmt) -> dict[str, Any]:
    match statement:
        case Block(body):
            return {"kind": "block", "body": [_fields(part) for part in body]}
        case For():
            return {
                "kind": "for",
                "loop": statement.kind,
                "var": statement.var,
                "axis": statement.axis,
                "lower": expr_text(statement.lower),
                "upper": expr_text(statement.upper),
                "step": statement.step,
                "chunk": statement.chunk,
                "body": _fields(statement.body),
            }
        case If(condition, then, otherwise):
            return {
                "kind": "if",
                "condition": expr_text(condition),
                "then": _fields(then),
                "else": None if otherwise is None else _fields(otherwise),
            }
        case Alloc(buffer, body):
            return {"kind": "alloc", "buffer": _buffer_fields(buffer), "body": _fields(body)}
        case Store():
            return {
                "kind": "store",
                "statement": statement.statement,
                "instance": [expr_text(value) for value in statement.instance],
                "buffer": statement.buffer,
                "indices": [expr_text(index) for index in statement.indices],
                "reducer": None if statement.reducer is None else statement.reducer.name,
                "value": expr_text(statement.value),
                "text": _store_text(statement),
            }
        case _:
            assert_never(statement)


def loop_dot(program: LoopProgram) -> str:
    """The tree of loops as a Graphviz graph: `dot -Tsvg`."""
    lines = [f"digraph {json.dumps(program.name)} {{", '  node [shape=box, fontname="monospace"];']
    counter = 0

    def add(statement: Stmt, parent: str) -> None:
        nonlocal counter
        name, head = parent, head_text(statement)
        if head:
            name, counter = f"n{counter}", counter + 1
            lines.append(f"  {name} [label={json.dumps(head)}{_dot_style(statement)}];")
            lines.append(f"  {parent} -> {name};")
        for part in substatements(statement):
            add(part, name)

    lines.append(f"  root [label={json.dumps(program.name)}, shape=ellipse];")
    add(program.body, "root")
    return "\n".join([*lines, "}"]) + "\n"


def _dot_style(statement: Stmt) -> str:
    colors = {
        "parallel": "lightblue",
        "grid": "lightblue",
        "block": "palegreen",
        "vector": "palegreen",
        "unrolled": "lightyellow",
        "pipeline": "lavender",
        "warp": "lavender",
        "warpgroup": "lavender",
        "exchange": "lavender",
    }
    if isinstance(statement, For) and statement.kind in colors:
        return f", style=filled, fillcolor={colors[statement.kind]}"
    return ""


_HTML_STYLE = (
    ".polyopt-loops .k{color:#0550ae;font-weight:bold}"
    ".polyopt-loops .m{color:#116329;font-weight:bold}"
    ".polyopt-loops .c{color:#6e7781;font-style:italic}"
)


def loop_html(program: LoopProgram) -> str:
    """The loop nest as an HTML fragment with keywords, parallel and vector marks, and comments in color."""
    code = "\n".join(_colored(html.escape(line, quote=False)) for line in loop_text(program).splitlines())
    return f'<style>{_HTML_STYLE}</style>\n<pre class="polyopt-loops">{code}</pre>\n'


def _colored(line: str) -> str:
    code, mark, comment = line.partition("  # ")
    code = re.sub(r"\b(kernel|in|out|workspace|screened|local|for|if|else|range)\b", r'<span class="k">\1</span>', code)
    code = re.sub(r"^(\s*)(parallel|vector|unrolled|group)\b", r'\1<span class="m">\2</span>', code)
    return code + (f'<span class="c">{mark}{comment}</span>' if mark else "")
