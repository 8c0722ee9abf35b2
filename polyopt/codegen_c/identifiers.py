"""The identifiers of a printed program: readable, C's, and no two things of one name.

An array, a size and a loop may share a name in a loop program, which tells them apart by what they are; a text of C or
CUDA cannot.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from polyopt.classes import dataclass
from polyopt.loops.ir import Alloc, For, LoopProgram, walk

_RESERVED = """
auto bool break case char const continue default do double else enum extern false float for goto if inline int long
register restrict return short _Alignas _Alignof _Atomic _Bool _Complex _Generic _Imaginary _Noreturn _Static_assert
_Thread_local asm typeof linux unix signed sizeof static struct switch true typedef union unsigned void volatile while
abs calloc cos div erf error exp fma fmod free gamma index isinf isnan j0 j1 jn log malloc memcpy pow rint sin sqrt
tan y0 y1 yn I NAN INFINITY NULL HUGE_VAL EXIT_SUCCESS EXIT_FAILURE RAND_MAX MB_CUR_MAX SIZE_MAX PTRDIFF_MIN
PTRDIFF_MAX INT8_MIN INT16_MIN INT32_MIN INT64_MIN INT8_MAX INT16_MAX INT32_MAX INT64_MAX UINT8_MAX UINT16_MAX
UINT32_MAX UINT64_MAX INTPTR_MIN INTPTR_MAX UINTPTR_MAX INTMAX_MIN INTMAX_MAX UINTMAX_MAX WCHAR_MIN WCHAR_MAX
SIG_ATOMIC_MIN SIG_ATOMIC_MAX FP_NAN FP_INFINITE FP_ZERO FP_SUBNORMAL FP_NORMAL M_PI M_E math_errhandling
alignas alignof and and_eq bitand bitor catch char16_t char32_t char8_t class co_await co_return co_yield compl concept
consteval constexpr constinit const_cast decltype delete dynamic_cast explicit export friend mutable namespace new
noexcept not not_eq nullptr operator or or_eq private protected public reinterpret_cast requires static_assert
static_cast template this thread_local throw try typeid typename using virtual wchar_t xor xor_eq
"""
"""C's own names, those of its library's macros and of functions that the printed text calls, this printer's, and the
keywords of C++ and of later versions of C, which read the header too."""
_EXTERNAL = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cosh erfc exp2 expm1 fabs fdim floor fmax fmin frexp hypot
ilogb ldexp lgamma llrint llround log10 log1p log2 logb lrint lround modf nan nearbyint nextafter nexttoward remainder
remquo round scalbln scalbn sinh tanh tgamma trunc fpclassify isfinite isgreater isless isnormal isunordered signbit
abort atexit atof atoi atol atoll bsearch exit getenv labs ldiv llabs lldiv mblen mbtowc qsort rand realloc srand
strtod strtof strtol strtoul system wctomb memchr memcmp memmove memset strcat strchr strcmp strcoll strcpy strcspn
strerror strlen strncat strncmp strncpy strpbrk strrchr strspn strstr strtok strxfrm index rindex random main
fprintf fputc fputs fscanf fwrite printf putc putchar puts scanf snprintf sprintf sscanf vfprintf vprintf vsnprintf
vsprintf
drem exp10 gamma_r pow10 scalb significand clearenv mktemp putenv setenv select
"""
"""More names that a function must not take: the external ones of the headers that the text includes, and `main`."""
_MATH = """
acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp2 expm1 fabs fdim floor fma fmax fmin
fmod frexp hypot ilogb ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nearbyint nextafter pow
remainder rint round scalbn sin sinh sqrt tan tanh tgamma trunc
"""
"""Functions of which C has one for `float`, with an f behind its name, and one for `long double`, with an l."""
_TYPES = re.compile(r"u?int(_fast|_least)?(8|16|32|64)_t|u?int(ptr|max)_t|(size|ptrdiff|wchar|float|double|div|ldiv)_t")


@dataclass(frozen=True, slots=True)
class Identifiers:
    """What things are called in a text. arrays, variables: the identifier of each buffer; of each size and loop"""

    arrays: dict[str, str]
    variables: dict[str, str]

    def __contains__(self, name: object) -> bool:
        return name in self.arrays.values() or name in self.variables.values()

    def copy(self) -> Identifiers:
        return Identifiers(dict(self.arrays), dict(self.variables))


def identifiers(program: LoopProgram, taken: Collection[str]) -> Identifiers:
    """An identifier for each buffer, size and loop variable; none is one of `taken` or means something in C."""
    statements = list(walk(program.body))
    allocated = [inner.buffer for inner in statements if isinstance(inner, Alloc)]
    buffers = [buffer.name for buffer in (*program.arguments, *program.workspace, *allocated)]
    loops = [inner.var for inner in statements if isinstance(inner, For)]
    given = {*taken, *_RESERVED.split()}

    arrays = {name: _free(name, given) for name in dict.fromkeys(buffers)}
    return Identifiers(arrays, {name: _free(name, given) for name in dict.fromkeys([*program.sizes, *loops])})


def external() -> frozenset[str]:
    """Functions of C's library, which a text of C may hide and one of C++ does not."""
    return frozenset(_EXTERNAL.split())


def identifier(name: str) -> str:
    """A C identifier that resembles the name."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return f"_{text}" if not text or text[0].isdigit() else text


def symbol_of(program: LoopProgram) -> str:
    """The name of the C function."""
    name = identifier(program.name)
    taken = {*_RESERVED.split(), *_EXTERNAL.split()}
    return f"{name}_" if name in taken or _is_of_c(name) else name


def _free(name: str, given: set[str]) -> str:
    """The identifier of a thing, which is then given."""
    found = identifier(name)
    found = f"v{found}" if found.lower().startswith("po_") else found
    while found in given or _is_of_c(found):
        found += "_"
    given.add(found)
    return found


def _is_of_c(name: str) -> bool:
    return (name[:-1] in _MATH.split() and name[-1] in "fl") or _TYPES.fullmatch(name) is not None
