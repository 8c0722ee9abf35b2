"""What NVRTC makes of kernels, for the emulator: PTX, instruction by instruction, as C++ over `po_ptx.h`.

The emulator runs the text that we emit, a GPU what compilers make of it. NVVM, which makes PTX of the text, has been
wrong (decision 0050); its PTX on the emulator shows that without a GPU. ptxas, which makes machine code of PTX, is not
in this. Each line of PTX is one line of C++, so that problems are reported with the line of the PTX.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from polyopt.errors import CompileError

_TYPES = {
    **{f"{kind}{bits}": f"{'' if kind == 's' else 'u'}int{bits}_t" for kind in "sub" for bits in (8, 16, 32, 64)},
    "f32": "float", "f64": "double", "pred": "bool",
}  # fmt: skip
_REGISTERS = {"pred": "bool", "b16": "uint16_t", "b32": "uint32_t", "b64": "uint64_t", "f32": "float", "f64": "double"}
_SPECIAL = {f"%{ours}.{axis}": f"(uint32_t){theirs}.{axis}" for axis in "xyz" for ours, theirs in
            (("tid", "threadIdx"), ("ctaid", "blockIdx"), ("ntid", "blockDim"), ("nctaid", "gridDim"))}  # fmt: skip
_COMPARED = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_FUNCTIONS = {"add", "sub", "div", "rem", "min", "max", "neg", "abs"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}
_MATH = {"ex2": "exp2", "lg2": "log2", **{name: name for name in ("sqrt", "sin", "cos", "tanh", "copysign")}}
_ROUNDINGS = {"rni": "nearest", "rmi": "down", "rpi": "up", "rzi": "toward_zero"}
_HALVES = {"cvt.f32.f16": "po_from_f16", "cvt.f32.bf16": "po_from_bf16", "cvt.rn.f16.f32": "po_to_f16",
           "cvt.rn.bf16.f32": "po_to_bf16", "cvt.rna.tf32.f32": "po_to_tf32"}  # fmt: skip
_PRODUCTS = {"bf16.bf16": "bf16", "f16.f16": "f16", "tf32.tf32": "tf32", "s8.s8": "s8", "u8.u8": "u8", "s8.u8": "s8_u8",
             "u8.s8": "u8_s8"}  # fmt: skip

_ENTRY = re.compile(r"\.entry (\w+)\(")
_PARAMETER = re.compile(r"\.param \.\w+ (\w+),?")
_DECLARED = re.compile(r"\.reg \.(\w+)\s+(.*);")
_MEMORY = re.compile(
    r"(?:\.(?:extern|visible|weak)\s+)*\.(shared|local|global) \.align (\d+) \.(\w+)\s+([\w$]+)(?:\[(\d*)\])?;"
)
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)(?:\s+(.*))?;$")
_LABEL = re.compile(r"\$(\w+):$")


def translated(ptx: str) -> str:
    """C++ for the emulator that does what the PTX does. Raises `CompileError` for an instruction that is not known."""
    lines: list[str] = []
    name = ""
    parameters: list[str] | None = None  # until the body begins
    for number, line in enumerate(ptx.splitlines()):
        text = line.split("//")[0].strip()
        if number == 0:
            lines.append('#include "po_ptx.h"')
        elif found := _ENTRY.search(text):
            name, parameters = found[1], []
            lines.append("")
        elif parameters is not None and (found := _PARAMETER.match(text)):
            parameters.append(found[1])
            lines.append("")
        elif parameters is not None and text == "{":
            lines.append(f"PO_KERNEL void {name}({', '.join(f'uint64_t {one}' for one in parameters)}) {{")
            parameters = None
        elif text == "}" and line.startswith("}"):
            lines.append(f"}} PO_ENTRY({name})")
            name = ""
        elif name and parameters is None:
            lines.append(_line(text))
        else:
            found = _MEMORY.match(text)
            lines.append(_memory(*found.groups()) if found else "")
    return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    """A line of a kernel's body."""
    if found := _MEMORY.match(text):
        return _memory(*found.groups())
    if text in ("{", "}"):
        return text
    if found := _DECLARED.match(text):
        return _declaration(found[1], found[2])
    if found := _LABEL.match(text):
        return f"{found[1]}:;"
    found = _INSTRUCTION.match(text)
    if found is None and (not text or text.startswith(".")):
        return ""  # a directive
    if found is None:
        raise _unknown(text)
    negated, predicate, operation, operands = found.groups()
    done = _instruction(operation.split("."), _operands(operands or ""))
    return done if predicate is None else f"if ({negated}{_register(predicate)}) {{ {done} }}"


def _memory(space: str, align: str, kind: str, name: str, count: str | None) -> str:
    """count: of an array; empty where the launch says how large it is"""
    size = f"{count or 1} * sizeof({_TYPES.get(kind, kind)})"
    match space:
        case "shared" if count == "":
            return f"#define {name} po::po_dynamic_shared"
        case "shared":
            return f"PO_SHARED unsigned char {name}[{size}];"
        case "local":
            return f"alignas({max(16, int(align))}) unsigned char {name}[{size}];"
        case _:
            return ""


def _declaration(kind: str, names: str) -> str:
    """Registers: `%r<5>` are four, from 1 on."""
    found = []
    for one in names.split(","):
        ranged = re.match(r"%(\w+)<(\d+)>", one.strip())
        if ranged:
            found += [f"{ranged[1]}{n}" for n in range(1, int(ranged[2]))]
        else:
            found.append(_register(one.strip()))
    return f"{_REGISTERS[kind]} {', '.join(found)};" if found else ""


def _register(name: str) -> str:
    return name.replace("%", "").replace("$", "_")


def _operands(text: str) -> list[str]:
    """Split at the commas that no bracket encloses."""
    found, depth, start = [], 0, 0
    for place, letter in enumerate(text):
        depth += (letter in "{[") - (letter in "}]")
        if letter == "," and depth == 0:
            found.append(text[start:place].strip())
            start = place + 1
    return [*found, text[start:].strip()] if text.strip() else found


def _value(operand: str, kind: str) -> str:
    """An operand as a value of a type: a register, a constant, a place in shared memory."""
    if operand in _SPECIAL:
        return f"({kind}){_SPECIAL[operand]}"
    if operand.startswith("0f"):
        return f"po_ptx::as<{kind}>(po::bits<float>(0x{operand[2:]}u))"
    if operand.startswith("0d"):
        return f"po_ptx::as<{kind}>(po::bits<double>((uint64_t)0x{operand[2:]}ull))"
    if operand.startswith("%"):
        return f"po_ptx::as<{kind}>({_register(operand)})"
    if re.match(r"-?\d", operand):
        return "(bool)" + operand if kind == "bool" else f"po_ptx::as<{kind}>((int64_t){_integer(operand)})"
    return f"({kind})(uintptr_t){operand}"


def _integer(text: str) -> str:
    return "INT64_MIN" if text == "-9223372036854775808" else f"{text}{'ull' if not text.startswith('-') else 'll'}"


def _address(operand: str) -> str:
    base, _, offset = operand.strip("[]").partition("+")
    return f"({_value(base, 'uint64_t')} + ({offset or 0}))"


def _set(target: str, value: str) -> str:
    """Put a value into a register, extended as its type says."""
    name = _register(target)
    return f"{name} = po_ptx::as<decltype({name})>({value});"


def _names(group: str) -> list[str]:
    """The registers of `{%r1, %r2}`."""
    return [one.strip() for one in group.strip("{}").split(",")]


def _instruction(parts: list[str], operands: Sequence[str]) -> str:
    name, kind = parts[0], _TYPES.get(parts[-1], "")
    whole = ".".join(parts)
    match name:
        case "bra":
            return f"goto {operands[0].lstrip('$')};"
        case "ret" | "exit":
            return "return;"
        case "ld":
            return _load(parts, operands)
        case "st":
            return _store(parts, operands)
        case "mov":
            return _move(operands, kind)
        case "cvta":
            return _set(operands[0], _value(operands[1], "uint64_t"))
        case "cvt":
            return _convert(parts, operands)
        case "setp":
            return _compare(parts, operands, kind)
        case "selp":
            then, otherwise = (_value(one, kind) for one in operands[1:3])
            return _set(operands[0], f"{_value(operands[3], 'bool')} ? {then} : {otherwise}")
        case "bar" | "barrier":
            return _barrier(parts, operands)
        case "shfl":
            return _shuffle(parts, operands)
        case "atom" | "red":
            return _atomic(parts, operands)
        case "cp":
            return _copy(parts, operands)
        case "ldmatrix":
            return _matrices(parts, operands)
        case "mma":
            return _product(whole, operands)
        case "membar" | "fence":
            return ";"
        case _:
            return _arithmetic(parts, operands, kind, whole)


def _arithmetic(parts: list[str], operands: Sequence[str], kind: str, whole: str) -> str:
    name = parts[0]
    if not kind or len(operands) < 2:
        raise _unknown(whole)
    values = [_value(one, kind) for one in operands[1:]]

    def call(function: str, *arguments: str) -> str:
        done = f"{function}({', '.join(arguments or values)})"
        return _set(operands[0], f"po_ptx::saturated<{kind}>({done})" if "sat" in parts else done)

    if ("ftz" in parts and "approx" not in parts) or (name != "fma" and set(parts) & {"rz", "rm", "rp"}):
        raise _unknown(whole)
    if whole in ("max.NaN.f32", "min.NaN.f32"):
        return call(f"po_{name}_nan")
    if name in _FUNCTIONS:
        return call(f"po_ptx::{name}<{kind}>")
    if name in _BITWISE:
        return _set(operands[0], f"({kind})({values[0]} {_BITWISE[name]} {values[1]})")
    if name in _MATH:
        swapped = name == "copysign"  # the sign comes first in PTX
        return call(f"std::{_MATH[name]}", *(values[::-1] if swapped else values))
    count = [*values[:-1], _value(operands[-1], "uint32_t")]
    match name:
        case "not":
            return _set(operands[0], f"!{values[0]}" if kind == "bool" else f"({kind})~{values[0]}")
        case "shl" | "shr":
            return call(f"po_ptx::{name}<{kind}>", *count)
        case "mul" | "mad" if parts[1] in ("lo", "hi", "wide"):
            wide = _TYPES[f"{parts[-1][0]}{2 * int(parts[-1][1:])}"] if parts[1] == "wide" else kind
            if parts[1] == "wide":
                values = [f"({wide}){value}" for value in values[:2]] + [_value(one, wide) for one in operands[3:]]
            product = f"po_ptx::{'mulhi' if parts[1] == 'hi' else 'mul'}<{wide}>({values[0]}, {values[1]})"
            return _set(operands[0], product if name == "mul" else f"po_ptx::add<{wide}>({product}, {values[2]})")
        case "mul":
            return call(f"po_ptx::mul<{kind}>")
        case "fma" if kind == "float" or "rn" in parts:
            directed = {"rz": "po_ptx::fma_toward_zero", "rm": "po_ptx::fma_down", "rp": "po_ptx::fma_up"}
            return call(directed.get(parts[1], "std::fma"))
        case "rcp":
            return _set(operands[0], f"({kind})1 / {values[0]}")
        case "rsqrt":
            return _set(operands[0], f"({kind})1 / std::sqrt({values[0]})")
        case "prmt" | "bfi" | "lop3":
            arguments = [_value(one, "uint32_t") for one in operands[1:]]
            return call(f"po_ptx::{name}", *arguments)
        case "bfe":
            return call(f"po_ptx::bfe<{kind}>", values[0], *(_value(one, "uint32_t") for one in operands[2:]))
        case "shf":
            return call(f"po_ptx::shift_{'left' if parts[1] == 'l' else 'right'}", *values)
        case "dp4a":
            bytes_of = ", ".join(f"{'u' if part[0] == 'u' else ''}int8_t" for part in parts[1:])
            return call(f"po_ptx::dp4a<{bytes_of}>", *(_value(one, "uint32_t") for one in operands[1:]))
        case "popc" | "clz":
            return call(f"__{name}", _value(operands[1], "uint32_t"))
        case _:
            raise _unknown(whole)


def _load(parts: list[str], operands: Sequence[str]) -> str:
    target, place = operands
    if "param" in parts:
        return _set(target, place.strip("[]"))
    kind = _TYPES[parts[-1]]
    if not target.startswith("{"):
        return _set(target, f"*(const {kind} *){_address(place)}")
    targets = _names(target)
    into = " ".join(_set(one, f"v.v[{n}]") for n, one in enumerate(targets))
    return f"{{ auto v = po_load<{len(targets)}>((const {kind} *){_address(place)}); {into} }}"


def _store(parts: list[str], operands: Sequence[str]) -> str:
    place, source = operands
    kind = _TYPES[parts[-1]]
    if not source.startswith("{"):
        return f"*({kind} *){_address(place)} = {_value(source, kind)};"
    sources = _names(source)
    values, count = ", ".join(_value(one, kind) for one in sources), len(sources)
    return f"po_store<{count}>(({kind} *){_address(place)}, po_vec<{kind}, {count}>{{{{{values}}}}});"


def _move(operands: Sequence[str], kind: str) -> str:
    target, source = operands
    if target.startswith("{"):
        low, high = _names(target)
        half = "uint32_t" if kind.endswith("64_t") or kind == "double" else "uint16_t"
        bits = "uint64_t" if half == "uint32_t" else "uint32_t"
        shift = 32 if half == "uint32_t" else 16
        value = f"{{ const {bits} x = {_value(source, bits)};"
        return f"{value} {_set(low, f'({half})x')} {_set(high, f'({half})(x >> {shift})')} }}"
    if source.startswith("{"):
        low, high = _names(source)
        half, shift = ("uint32_t", 32) if kind.endswith("64_t") or kind == "double" else ("uint16_t", 16)
        bits = "uint64_t" if shift == 32 else "uint32_t"
        return _set(target, f"({bits})({_value(low, half)} | ({bits}){_value(high, half)} << {shift})")
    return _set(target, _value(source, kind))


def _convert(parts: list[str], operands: Sequence[str]) -> str:
    whole = ".".join(parts)
    if whole in _HALVES:
        source = "uint16_t" if parts[-1].endswith("16") else "float"
        return _set(operands[0], f"{_HALVES[whole]}({_value(operands[1], source)})")
    to, of = _TYPES[parts[-2]], _TYPES[parts[-1]]
    rounding = next((_ROUNDINGS[one] for one in parts if one in _ROUNDINGS), None)
    if "ftz" in parts or ("sat" in parts and (to, of) != ("float", "float")):
        raise _unknown(whole)
    value = _value(operands[1], of)
    if "sat" in parts:
        return _set(operands[0], f"po_ptx::saturated<float>({value})")
    if rounding is None:
        name = _register(operands[0])
        return f"{name} = (decltype({name}))({to}){value};"
    if to in ("float", "double"):
        return _set(operands[0], f"po_ptx::{rounding}<{of}>({value})")
    name = _register(operands[0])
    return f"{name} = (decltype({name}))po_ptx::whole<{to}, {of}, po_ptx::{rounding}<{of}>>({value});"


def _compare(parts: list[str], operands: Sequence[str], kind: str) -> str:
    left, right = (_value(one, kind) for one in operands[1:3])
    relation = parts[1]
    match relation:
        case "num" | "nan":
            found = f"{'!' if relation == 'num' else ''}po_ptx::unordered({left}, {right})"
        case _ if relation in _COMPARED:
            found = f"{left} {_COMPARED[relation]} {right}"
            if relation == "ne" and kind in ("float", "double"):
                found += f" && !po_ptx::unordered({left}, {right})"
        case _ if relation[:-1] in _COMPARED and relation.endswith("u"):
            found = f"{left} {_COMPARED[relation[:-1]]} {right} || po_ptx::unordered({left}, {right})"
        case _:
            raise _unknown(".".join(parts))
    if len(parts) == 4:
        also = operands[3].lstrip("!")
        other = f"{'!' if operands[3].startswith('!') else ''}{_register(also)}"
        found = f"({found}) {_BITWISE[parts[2]]} {other}"
    return f"{_register(operands[0])} = {found};"


def _barrier(parts: list[str], operands: Sequence[str]) -> str:
    if "warp" in parts:
        return f"__syncwarp({_value(operands[0], 'uint32_t')});"
    if list(operands) == ["0"]:
        return "__syncthreads();"
    if len(operands) == 2 and parts[1] in ("sync", "arrive"):
        return f"po_bar_{parts[1]}({', '.join(_value(one, 'int32_t') for one in operands)});"
    raise _unknown(".".join(parts))


def _shuffle(parts: list[str], operands: Sequence[str]) -> str:
    """The last operands: the lane or the distance, 31 for segments of a whole warp, and the mask."""
    target = operands[0].split("|")[0]
    name = f"__shfl{ {'bfly': '_xor', 'down': '_down', 'up': '_up', 'idx': ''}[parts[2]] }_sync"
    value, lane, mask = (_value(operands[n], kind) for n, kind in ((1, "uint32_t"), (2, "int32_t"), (4, "uint32_t")))
    return _set(target, f"{name}({mask}, {value}, {lane})")


def _atomic(parts: list[str], operands: Sequence[str]) -> str:
    kind = _TYPES[parts[-1]]
    has_result = parts[0] == "atom"
    place, *values = operands[1:] if has_result else operands
    name = {"add": "atomicAdd", "min": "atomicMin", "max": "atomicMax", "exch": "atomicExch", "cas": "atomicCAS"}.get(
        next((one for one in parts[1:] if one in ("add", "min", "max", "exch", "cas")), "")
    )
    if name is None:
        raise _unknown(".".join(parts))
    done = f"{name}(({kind} *){_address(place)}, {', '.join(_value(one, kind) for one in values)})"
    return _set(operands[0], done) if has_result else f"{done};"


def _copy(parts: list[str], operands: Sequence[str]) -> str:
    whole = ".".join(parts)
    if whole == "cp.async.commit_group":
        return "po_cp_commit();"
    if whole == "cp.async.wait_group":
        return f"po_cp_wait<{operands[0]}>();"
    if whole not in ("cp.async.cg.shared.global", "cp.async.ca.shared.global"):
        raise _unknown(whole)
    place = f"po_ptx::shared({_value(operands[0].strip('[]'), 'uint32_t')})"
    source = f"(const void *){_address(operands[1])}"
    if len(operands) == 3:
        return f"po_cp_async{operands[2]}({place}, {source});"
    return f"po_cp_async{operands[2]}_zfill({place}, {source}, {_value(operands[3], 'uint32_t')} != 0);"


def _matrices(parts: list[str], operands: Sequence[str]) -> str:
    count, turned = parts[4][1:], "_t" if "trans" in parts else ""
    targets = " ".join(_set(target, f"r[{n}]") for n, target in enumerate(_names(operands[0])))
    place = f"po_ptx::shared({_value(operands[1].strip('[]'), 'uint32_t')})"
    return f"{{ po_u32 r[{count}]; po_ldmatrix_x{count}{turned}(r, {place}); {targets} }}"


def _product(whole: str, operands: Sequence[str]) -> str:
    kinds = next((ours for theirs, ours in _PRODUCTS.items() if f".{theirs}." in whole), None)
    if kinds is None:
        raise _unknown(whole)
    kind = "float" if whole.endswith(".f32") else "int32_t"
    sums, left, right, before = (_names(one) for one in operands)
    d = ", ".join(_value(one, kind) for one in before)
    a, b = (", ".join(_value(one, "uint32_t") for one in some) for some in (left, right))
    results = " ".join(_set(one, f"d[{n}]") for n, one in enumerate(sums))
    return f"{{ {kind} d[4] = {{{d}}}; po_u32 a[4] = {{{a}}}, b[2] = {{{b}}}; po_mma_{kinds}(d, a, b); {results} }}"


def _unknown(instruction: str) -> CompileError:
    what = f"the emulator does not know the PTX instruction '{instruction}'"
    return CompileError(what, facts={"instruction": instruction})
