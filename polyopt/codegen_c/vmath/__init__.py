"""Math functions of our own: exp, log, sin, ... for f32 and f64, within 2 ulp of the exact value over the whole range.

Each is written once as straight-line code over an abstract `Builder` and has an LLVM, a C and a NumPy instance that
agree bit for bit. Nothing is flushed to zero; NaN, infinities and signed zeros follow C's Annex F.

    y = emit_call(LlvmBuilder(emit, f32, lanes=8, module=module), "exp", f32, ("%x",))
    symbol, text = c_source.function("exp", "f32")
    y = vmath.numpy.call("exp", x)
"""

from __future__ import annotations

from polyopt.codegen_c.vmath.builder import Builder
from polyopt.codegen_c.vmath.catalogue import FUNCTIONS
from polyopt.codegen_c.vmath.llvm import FORMATS, LlvmBuilder, LlvmModule
from polyopt.dtypes import DType

__all__ = ["FUNCTIONS", "Builder", "LlvmBuilder", "LlvmModule", "emit_call"]


def emit_call(builder: LlvmBuilder, name: str, dtype: DType, operands: tuple[str, ...]) -> str:
    """Emits the function `name` of LLVM operands of `dtype`, the builder's own, and returns the result's name."""
    assert builder.format is FORMATS[dtype], f"a builder of {builder.format.name} cannot emit {name} of {dtype}"
    function = FUNCTIONS[name]
    assert len(operands) == function.arity, f"{name} takes {function.arity} operands"
    if function.outlined:
        return builder.outline(name, function.body, operands)
    result: str = function.body(builder, *operands)
    return result
