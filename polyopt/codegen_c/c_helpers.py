"""The small C functions that a printed kernel may call, each emitted only where it is used.

They spell out what C leaves undefined or rounds otherwise: wrapping signed arithmetic, total division, shifts by any
count, conversions of floats that do not fit, 16-bit floats, and NumPy's minimum, maximum, floor division and modulo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from polyopt.codegen_c.vmath import FUNCTIONS
from polyopt.codegen_c.vmath import c_source as math_source
from polyopt.dtypes import DType, from_name

C_TYPES: Mapping[str, str] = {"bool": "bool", "f16": "float", "bf16": "float", "f32": "float", "f64": "double"}
_STORED: Mapping[str, str] = {"bool": "uint8_t", "f16": "uint16_t", "bf16": "uint16_t"}


def value_type(dtype: DType) -> str:
    """C type of a value: 16-bit floats are held, already rounded, as `float`."""
    return C_TYPES.get(dtype.name) or f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"


def stored_type(dtype: DType) -> str:
    """C type of an element in memory."""
    return _STORED.get(dtype.name) or value_type(dtype)


_TEMPLATES: Mapping[str, str] = {
    "add_int": "static inline $T $name($T a, $T b) { return ($T)(($U)a + ($U)b); }",
    "sub_int": "static inline $T $name($T a, $T b) { return ($T)(($U)a - ($U)b); }",
    "mul_int": "static inline $T $name($T a, $T b) { return ($T)(($W)a * ($W)b); }",
    "neg_int": "static inline $T $name($T a) { return ($T)(0 - ($U)a); }",
    "abs_int": "static inline $T $name($T a) { return a < 0 ? ($T)(0 - ($U)a) : a; }",
    "abs_unsigned": "static inline $T $name($T a) { return a; }",
    "sign_int": "static inline $T $name($T a) { return ($T)((a > 0) - (a < 0)); }",
    "sign_unsigned": "static inline $T $name($T a) { return ($T)(a > 0); }",
    "sign_float": "static inline $T $name($T a) { return a > 0 ? 1 : a < 0 ? -1 : a == 0 ? 0 : a; }",
    "minimum_int": "static inline $T $name($T a, $T b) { return a < b ? a : b; }",
    "maximum_int": "static inline $T $name($T a, $T b) { return a > b ? a : b; }",
    "minimum_float": """\
static inline $T $name($T a, $T b)
{
    return isnan(a) || a < b || (a == b && signbit(a)) ? a : b;
}""",
    "maximum_float": """\
static inline $T $name($T a, $T b)
{
    return isnan(a) || a > b || (a == b && !signbit(a)) ? a : b;
}""",
    "floordiv_int": """\
static inline $T $name($T a, $T b)
{
    if (b == 0) return 0;
    if (b == -1) return ($T)(0 - ($U)a);
    return ($T)(a / b - (a % b != 0 && (a % b < 0) != (b < 0)));
}""",
    "mod_int": """\
static inline $T $name($T a, $T b)
{
    if (b == 0 || b == -1) return 0;
    return ($T)(a % b + (a % b != 0 && (a % b < 0) != (b < 0) ? b : 0));
}""",
    "floordiv_unsigned": "static inline $T $name($T a, $T b) { return ($T)(b == 0 ? 0 : a / b); }",
    "mod_unsigned": "static inline $T $name($T a, $T b) { return ($T)(b == 0 ? 0 : a % b); }",
    "mod_float": """\
static inline $T $name($T a, $T b)
{
    $T r = fmod$f(a, b);
    if (b == 0) return r;
    if (r == 0) return copysign$f(($T)0, b);
    return (b < 0) != (r < 0) ? r + b : r;
}""",
    "floordiv_float": """\
static inline $T $name($T a, $T b)
{
    if (b == 0) return a / b;
    $T r = fmod$f(a, b);
    $T q = (a - r) / b;
    if (r != 0 && (b < 0) != (r < 0)) q -= 1;
    if (q == 0) return copysign$f(($T)0, a / b);
    $T whole = floor$f(q);
    return q - whole > ($T)0.5 ? whole + 1 : whole;
}""",
    "shl_int": "static inline $T $name($T a, $T b) { return ($U)b < $bits ? ($T)(($U)a << b) : 0; }",
    "shr_int": """\
static inline $T $name($T a, $T b)
{
    return ($T)(($U)b < $bits ? a >> b : a >> $bits / 2 >> $bits / 2);
}""",
    "pow_int": """\
static inline $T $name($T a, $T b)
{
    if (b < 0) return a == 1 ? 1 : a == ($T)-1 ? ($T)(b % 2 ? -1 : 1) : 0;
    $W result = 1, base = ($W)a;
    for (; b; b = ($T)(b / 2)) {
        if (b % 2) result *= base;
        base *= base;
    }
    return ($T)result;
}""",
    "pow_unsigned": """\
static inline $T $name($T a, $T b)
{
    $W result = 1, base = a;
    for (; b; b = ($T)(b / 2)) {
        if (b % 2) result *= base;
        base *= base;
    }
    return ($T)result;
}""",
}

_FIXED: Mapping[str, str] = {
    "po_to_i32": """\
static inline int32_t po_to_i32(double x)
{
    return x >= -0x1p31 && x < 0x1p31 ? (int32_t)x : INT32_MIN;
}""",
    "po_to_i64": """\
static inline int64_t po_to_i64(double x)
{
    return x >= -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN;
}""",
    "po_to_u64": """\
static inline uint64_t po_to_u64(double x)
{
    return x >= 0x1p63 ? (uint64_t)po_to_i64(x - 0x1p63) ^ (uint64_t)1 << 63 : (uint64_t)po_to_i64(x);
}""",
    "po_bits": "static inline uint32_t po_bits(float x) { uint32_t i; memcpy(&i, &x, sizeof i); return i; }",
    "po_float": "static inline float po_float(uint32_t i) { float x; memcpy(&x, &i, sizeof x); return x; }",
    "po_to_bf16": """\
static inline uint16_t po_to_bf16(float x)
{
    uint32_t i = po_bits(x);
    return (uint16_t)((isnan(x) ? i | 0x400000 : i + 0x7FFF + (i >> 16 & 1)) >> 16);
}""",
    "po_from_bf16": "static inline float po_from_bf16(uint16_t h) { return po_float((uint32_t)h << 16); }",
    "po_round_bf16": "static inline float po_round_bf16(float x) { return po_from_bf16(po_to_bf16(x)); }",
    "po_to_f16": """\
static inline uint16_t po_to_f16(float x)
{
    uint32_t i = po_bits(x), a = i & 0x7FFFFFFF, h;
    if (a >= 0x47800000) h = isnan(x) ? 0x7E00 : 0x7C00;
    else if (a < 0x38800000) h = po_bits(po_float(a) + 0.5f) - 0x3F000000;
    else h = (a + 0xC8000FFF + (a >> 13 & 1)) >> 13;
    return (uint16_t)(h | (i >> 16 & 0x8000));
}""",
    "po_from_f16": """\
static inline float po_from_f16(uint16_t h)
{
    uint32_t a = (uint32_t)(h & 0x7FFF) << 13, e = a & 0x0F800000, i = a + 0x38000000;
    if (e == 0x0F800000) i += 0x38000000;
    else if (e == 0) i = po_bits(po_float(i + 0x800000) - 0x1p-14f);
    return po_float(i | (uint32_t)(h & 0x8000) << 16);
}""",
    "po_round_f16": "static inline float po_round_f16(float x) { return po_from_f16(po_to_f16(x)); }",
    "po_narrow": """\
/* A double as a float that may be rounded once more: inexact results get an odd significand. */
static inline float po_narrow(double x)
{
    float nearest = (float)x;
    if (isnan(x) || nearest == x) return nearest;
    return po_float((po_bits(nearest) - (fabs((double)nearest) > fabs(x))) | 1);
}""",
    "po_inside": """\
/* Whether a subscript that is data is in range; the first that is not is remembered. */
static inline bool po_inside(int64_t index, int64_t extent, int64_t site, int64_t *error)
{
    if ((uint64_t)index < (uint64_t)extent) return true;
    if (*error == 0) *error = site + 1;
    return false;
}""",
}

_WORD = re.compile(r"\bpo_\w+\b")
_DTYPED = re.compile(r"po_(load|store|\w+?)_((?:b?f|i|u)\d+|bool)$")


def helper_name(operation: str, dtype: DType) -> str:
    return f"po_{operation}_{dtype}"


def template(operation: str, dtype: DType) -> str:
    """The text of an operation on values of a dtype, with $name, the types $T, $U and $W, its suffix $f, and $bits."""
    kind = "float" if dtype.is_float else "unsigned" if dtype.kind == "u" else "int"
    return _TEMPLATES.get(f"{operation}_{kind}") or _TEMPLATES[f"{operation}_int"]


def definitions(
    body: str, provided: frozenset[str] = frozenset(), template: Callable[[str, DType], str] = template
) -> str:
    """The helpers that a C text uses, each after those that it uses itself.

    provided: helpers that the text finds elsewhere; template: of an operation on values of a dtype
    """
    done: dict[str, str] = {}
    maths: dict[str, str] = {}

    def need(names: Iterable[str]) -> None:
        for name in names:
            text = None if name in done or name in provided else _definition(name, template)
            if text is not None:
                need(word for word in _WORD.findall(text) if word != name)
                done[name] = text

    need(dict.fromkeys(_WORD.findall(body)))
    for name, kind in dict.fromkeys(re.findall(r"\bpolyopt_(\w+?)_(f32|f64)\(", body)):
        if name in FUNCTIONS:
            maths[f"{name} {kind}"] = math_source.function(name, "f32" if kind == "f32" else "f64")[1]
    preamble = [math_source.PREAMBLE] if maths else []
    return "\n".join([*preamble, *maths.values(), *done.values()])


def _definition(name: str, template: Callable[[str, DType], str]) -> str | None:
    if name in _FIXED:
        return _FIXED[name]
    match = _DTYPED.match(name)
    if match is None:
        return None
    operation, dtype = match[1], from_name(match[2])
    if operation in ("load", "store"):
        return _memory_access(name, operation, dtype)
    wide = max(dtype.bits, 32)
    words = {
        "name": name,
        "T": value_type(dtype),
        "U": f"uint{dtype.bits}_t",
        "W": f"uint{wide}_t",
        "f": "" if dtype.name == "f64" else "f",
        "bits": str(dtype.bits),
    }
    return re.sub(r"\$(name|bits|[TUWf])", lambda found: words[found[1]], template(operation, dtype))


def _memory_access(name: str, operation: str, dtype: DType) -> str:
    """Access to an element at any address."""
    kind = stored_type(dtype)
    if operation == "load":
        return f"static inline {kind} {name}(const void *p) {{ {kind} x; memcpy(&x, p, sizeof x); return x; }}"
    return f"static inline void {name}(void *p, {kind} x) {{ memcpy(p, &x, sizeof x); }}"
