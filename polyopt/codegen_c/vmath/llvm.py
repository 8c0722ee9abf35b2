"""The LLVM instance: operations become lines of LLVM IR, on scalars or on vectors of `lanes` elements.

    def emit(text: str) -> str: ...            # appends "%v7 = " + text to the function at hand, returns "%v7"
    builder = LlvmBuilder(emit, f32, lanes=8)
    y = emit_call(builder, "exp", f32, ("%x",))     # "%x" is a `<8 x float>`
    module_text += builder.module.text()            # intrinsics, tables and helpers, once for the whole module

Most functions are written in line. Those with a branch, and the long ones, become functions of the module, named
after the function, the dtype and the lanes (`@polyopt_sin_f32x8`), so they do not disturb the caller's blocks.
Lines carry no fast-math flags, and none may be added to them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.codegen_c.vmath.builder import F32, F64, FloatPredicate, IntPredicate
from polyopt.dtypes import DType, f32, f64

FORMATS = {f32: F32, f64: F64}


@dataclass(slots=True)
class LlvmModule:
    """What the emitted lines need at module level; one for all builders of a module.

    declarations: intrinsics, one line each
    constants:    lookup tables, one line each
    definitions:  helper functions, name to text
    attributes:   function attributes put on each helper (`"target-cpu"="..."`), as the caller's functions have
    has_scaling:  whether vectors of 512 bits are those of AVX-512, which scales by powers of two
    """

    attributes: str = ""
    has_scaling: bool = False
    declarations: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    definitions: dict[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """All of it, sorted, as LLVM IR."""
        helpers = [self.definitions[name] for name in sorted(self.definitions)]
        return "\n".join([*sorted(self.declarations), *sorted(self.constants), *helpers, ""])


class LlvmBuilder:
    """A `Builder` whose values are LLVM operands: names, or constants in the text."""

    def __init__(
        self, emit: Callable[[str], str], dtype: DType, lanes: int = 1, module: LlvmModule | None = None
    ) -> None:
        """emit: appends one instruction and returns the name of its value; lanes: 1 for scalars."""
        self.format = FORMATS[dtype]
        self.lanes = lanes
        self.module = LlvmModule() if module is None else module
        self._emit = emit
        self._float = self._lanes_of("float" if self.format is F32 else "double")
        self._int = self._lanes_of(f"i{self.format.bits}")
        self._mask = self._lanes_of("i1")
        self._suffix = f"f{self.format.bits}" if lanes == 1 else f"v{lanes}f{self.format.bits}"

    @property
    def wide(self) -> LlvmBuilder:
        return self if self.format is F64 else LlvmBuilder(self._emit, f64, self.lanes, self.module)

    # --- floats ---

    def const(self, value: float) -> str:
        if self.format is F32 and value == value:
            assert struct.unpack("f", struct.pack("f", value))[0] == value, f"{value.hex()} is not an f32"
        return self._splat("float" if self.format is F32 else "double", f"0x{_bits(value):016X}")

    def fadd(self, a: str, b: str) -> str:
        return self._emit(f"fadd {self._float} {a}, {b}")

    def fsub(self, a: str, b: str) -> str:
        return self._emit(f"fsub {self._float} {a}, {b}")

    def fmul(self, a: str, b: str) -> str:
        return self._emit(f"fmul {self._float} {a}, {b}")

    def fdiv(self, a: str, b: str) -> str:
        return self._emit(f"fdiv {self._float} {a}, {b}")

    def fma(self, a: str, b: str, c: str) -> str:
        return self._intrinsic("fma", a, b, c)

    def fneg(self, a: str) -> str:
        return self._emit(f"fneg {self._float} {a}")

    def fabs(self, a: str) -> str:
        return self._intrinsic("fabs", a)

    def copysign(self, magnitude: str, sign: str) -> str:
        return self._intrinsic("copysign", magnitude, sign)

    def rint(self, a: str) -> str:
        return self._intrinsic("rint", a)

    def fcmp(self, predicate: FloatPredicate, a: str, b: str) -> str:
        return self._emit(f"fcmp {predicate} {self._float} {a}, {b}")

    # --- integers ---

    def iconst(self, value: int) -> str:
        half = 1 << (self.format.bits - 1)
        return self._splat(f"i{self.format.bits}", str((value + half) % (2 * half) - half))

    def iadd(self, a: str, b: str) -> str:
        return self._emit(f"add {self._int} {a}, {b}")

    def isub(self, a: str, b: str) -> str:
        return self._emit(f"sub {self._int} {a}, {b}")

    def imul(self, a: str, b: str) -> str:
        return self._emit(f"mul {self._int} {a}, {b}")

    def iand(self, a: str, b: str) -> str:
        return self._emit(f"and {self._int} {a}, {b}")

    def ior(self, a: str, b: str) -> str:
        return self._emit(f"or {self._int} {a}, {b}")

    def shl(self, a: str, count: str) -> str:
        return self._emit(f"shl {self._int} {a}, {count}")

    def lshr(self, a: str, count: str) -> str:
        return self._emit(f"lshr {self._int} {a}, {count}")

    def icmp(self, predicate: IntPredicate, a: str, b: str) -> str:
        return self._emit(f"icmp {predicate} {self._int} {a}, {b}")

    def lookup(self, table: tuple[int, ...], index: str) -> str:
        """Element by element: a gather instruction would not be faster, and not every machine has one."""
        array = self._table(table)
        element = f"i{self.format.bits}"
        if self.lanes == 1:
            return self._load(array, len(table), index)
        vector = "poison"
        for lane in range(self.lanes):
            scalar = self._emit(f"extractelement {self._int} {index}, i32 {lane}")
            loaded = self._load(array, len(table), scalar)
            vector = self._emit(f"insertelement {self._int} {vector}, {element} {loaded}, i32 {lane}")
        return vector

    # --- between the sorts ---

    def as_int(self, a: str) -> str:
        return self._emit(f"bitcast {self._float} {a} to {self._int}")

    def as_float(self, a: str) -> str:
        return self._emit(f"bitcast {self._int} {a} to {self._float}")

    def widen(self, a: str) -> str:
        return a if self.format is F64 else self._emit(f"fpext {self._float} {a} to {self._lanes_of('double')}")

    def narrow(self, a: str) -> str:
        return a if self.format is F64 else self._emit(f"fptrunc {self._lanes_of('double')} {a} to {self._float}")

    # --- masks ---

    @property
    def has_scaling(self) -> bool:
        return self.module.has_scaling and self.lanes * self.format.bits == 512

    def scaled(self, value: str, n: str) -> str:
        kind, mask = self._float, f"i{max(self.lanes, 8)}"
        name = f"@llvm.x86.avx512.mask.scalef.{'ps' if self.format is F32 else 'pd'}.512"
        self.module.declarations.add(f"declare {kind} {name}({kind}, {kind}, {kind}, {mask}, i32)")
        return self._emit(f"call {kind} {name}({kind} {value}, {kind} {n}, {kind} {value}, {mask} -1, i32 4)")

    def mask_and(self, a: str, b: str) -> str:
        return self._emit(f"and {self._mask} {a}, {b}")

    def mask_or(self, a: str, b: str) -> str:
        return self._emit(f"or {self._mask} {a}, {b}")

    def select(self, mask: str, then: str, otherwise: str) -> str:
        return self._emit(f"select {self._mask} {mask}, {self._float} {then}, {self._float} {otherwise}")

    def select_int(self, mask: str, then: str, otherwise: str) -> str:
        return self._emit(f"select {self._mask} {mask}, {self._int} {then}, {self._int} {otherwise}")

    def select_rare(
        self, mask: str, then: Callable[[], tuple[str, ...]], otherwise: tuple[str, ...]
    ) -> tuple[str, ...]:
        raise AssertionError("a function with a branch must be marked `outlined`")

    # --- helpers ---

    def outline(self, name: str, body: Callable[..., str], operands: tuple[str, ...]) -> str:
        """Calls `body` as a function of the module, which is added at its first use."""
        symbol = f"polyopt_{name}_{self.format.name}" + ("" if self.lanes == 1 else f"x{self.lanes}")
        if symbol not in self.module.definitions:
            self.module.definitions[symbol] = _definition(self, symbol, body, len(operands))
        arguments = ", ".join(f"{self._float} {operand}" for operand in operands)
        return self._emit(f"call {self._float} @{symbol}({arguments})")

    def _intrinsic(self, name: str, *operands: str) -> str:
        types = ", ".join([self._float] * len(operands))
        self.module.declarations.add(f"declare {self._float} @llvm.{name}.{self._suffix}({types})")
        arguments = ", ".join(f"{self._float} {operand}" for operand in operands)
        return self._emit(f"call {self._float} @llvm.{name}.{self._suffix}({arguments})")

    def _lanes_of(self, element: str) -> str:
        return element if self.lanes == 1 else f"<{self.lanes} x {element}>"

    def _splat(self, element: str, constant: str) -> str:
        return constant if self.lanes == 1 else f"splat ({element} {constant})"

    def _table(self, table: tuple[int, ...]) -> str:
        element = f"i{self.format.bits}"
        name = f"@polyopt_table_{sum(v * (2 * k + 1) for k, v in enumerate(table)) % 2**64:016x}"
        values = ", ".join(f"{element} {value}" for value in table)
        self.module.constants.add(
            f"{name} = private unnamed_addr constant [{len(table)} x {element}] [{values}], align 64"
        )
        return name

    def _load(self, array: str, length: int, index: str) -> str:
        element = f"i{self.format.bits}"
        address = self._emit(f"getelementptr inbounds [{length} x {element}], ptr {array}, i64 0, {element} {index}")
        return self._emit(f"load {element}, ptr {address}, align {self.format.bits // 8}")


class _HelperBuilder(LlvmBuilder):
    """The builder of a helper function's body, which owns its blocks and may branch."""

    def __init__(self, parent: LlvmBuilder, body: _Body) -> None:
        super().__init__(body.emit, f32 if parent.format is F32 else f64, parent.lanes, parent.module)
        self._body = body

    def select_rare(
        self, mask: str, then: Callable[[], tuple[str, ...]], otherwise: tuple[str, ...]
    ) -> tuple[str, ...]:
        before = self._body.block
        rare, join = self._body.fresh_labels("rare", "join")
        self._body.line(f"br i1 {self._any(mask)}, label %{rare}, label %{join}")
        self._body.open(rare)
        computed = tuple(self.select(mask, value, other) for value, other in zip(then(), otherwise, strict=True))
        rare_end = self._body.block
        self._body.line(f"br label %{join}")
        self._body.open(join)
        return tuple(
            self._emit(f"phi {self._float} [ {other}, %{before} ], [ {value}, %{rare_end} ]")
            for value, other in zip(computed, otherwise, strict=True)
        )

    def _any(self, mask: str) -> str:
        if self.lanes == 1:
            return mask
        self.module.declarations.add(f"declare i1 @llvm.vector.reduce.or.v{self.lanes}i1({self._mask})")
        return self._emit(f"call i1 @llvm.vector.reduce.or.v{self.lanes}i1({self._mask} {mask})")


@dataclass(slots=True)
class _Body:
    """The lines of one helper function, and the block that the next line goes to."""

    lines: list[str] = field(default_factory=lambda: ["entry:"])
    block: str = "entry"
    count: int = 0

    def emit(self, text: str) -> str:
        name = f"%v{self.count}"
        self.count += 1
        self.line(f"{name} = {text}")
        return name

    def line(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def fresh_labels(self, *stems: str) -> tuple[str, ...]:
        self.count += 1
        return tuple(f"{stem}{self.count}" for stem in stems)

    def open(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.block = label


def _definition(parent: LlvmBuilder, symbol: str, function: Callable[..., str], arity: int) -> str:
    body = _Body()
    names = tuple(f"%x{k}" for k in range(arity))
    result = function(_HelperBuilder(parent, body), *names)
    kind = parent._float
    body.line(f"ret {kind} {result}")
    parameters = ", ".join(f"{kind} {name}" for name in names)
    attributes = f"nounwind willreturn memory(none) {parent.module.attributes}".rstrip()
    return f"define internal {kind} @{symbol}({parameters}) {attributes} {{\n" + "\n".join(body.lines) + "\n}"


def _bits(value: float) -> int:
    """The bits of the f64, which is how LLVM writes constants of both formats."""
    return int.from_bytes(struct.pack(">d", value), "big")
