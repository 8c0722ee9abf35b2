"""Functions that combine a value of every thread of a warp or a block: registers, shuffles, one exchange.

A butterfly of shuffles leaves the same bits in every lane, for a combination gives the same with its operands swapped;
warps then exchange one value each through shared memory. The order depends on the number of threads alone.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import field

from polyopt.classes import dataclass
from polyopt.codegen_c.c_expressions import Text
from polyopt.codegen_c.c_helpers import value_type
from polyopt.codegen_c.expressions import combine_of, neutral_number
from polyopt.codegen_c.identifiers import Identifiers
from polyopt.codegen_cuda.expressions import CudaExpressions
from polyopt.dsl.ir import Const, Reducer
from polyopt.errors import ScheduleError
from polyopt.names import unused
from polyopt.target import WARP


@dataclass(slots=True)
class Reductions:
    """The functions that a program's kernels need.

    names: of what else the text has; functions: name and text, in order of need
    """

    names: Container[str]
    functions: dict[str, str] = field(default_factory=dict)
    reducers: list[Reducer] = field(default_factory=list)

    def custom(self, x: CudaExpressions) -> Callable[[Reducer], str]:
        """Gives the name of the function that combines two values of a custom reducer."""

        def function(reducer: Reducer) -> str:
            if reducer not in self.reducers:
                self.reducers.append(reducer)
            name = unused(f"combine_{self.reducers.index(reducer)}", self.names)
            kind = value_type(reducer.dtype)
            own = type(x)(Identifiers({}, {}), {})  # its operands are called a and b, whatever else is
            text = own.value(combine_of(reducer), is_data=True).text
            self.functions.setdefault(
                name, f"static PO_DEVICE {kind} {name}({kind} a, {kind} b)\n{{\n    return {text};\n}}\n"
            )
            return name

        return function

    def over_warp(self, reducer: Reducer, x: CudaExpressions) -> str:
        """The function `T f(T value)` for the lanes of a warp."""
        name = unused(f"{reducer.name}_of_warp_{reducer.dtype}", self.names)
        kind = value_type(reducer.dtype)
        wide = kind if reducer.dtype.bits >= 32 or reducer.dtype.is_float else "int"
        received = "po_shfl_xor(value, step)" if wide == kind else f"({kind})po_shfl_xor((int)value, step)"
        combined = x.combined(reducer, Text("value"), Text("other"), _refuse).text
        self.functions.setdefault(
            name,
            f"static PO_DEVICE {kind} {name}({kind} value)\n{{\n#pragma unroll\n"
            f"    for (int step = {WARP // 2}; step > 0; step /= 2) {{\n"
            f"        const {kind} other = {received};\n        value = {combined};\n    }}\n"
            f"    return value;\n}}\n",
        )
        return name

    def over_block(self, reducer: Reducer, threads: int, x: CudaExpressions) -> str:
        """The function `T f(T value, T *parts, int thread)` for a block's threads; `parts` has one place a warp."""
        warp, warps = self.over_warp(reducer, x), threads // WARP
        name = unused(f"{reducer.name}_of_{threads}_{reducer.dtype}", self.names)
        kind = value_type(reducer.dtype)
        own = f"thread % {WARP}"
        part = f"parts[{own}]" if warps == WARP else f"{own} < {warps} ? parts[{own}] : {neutral_text(reducer, x)}"
        self.functions.setdefault(
            name,
            f"static PO_DEVICE {kind} {name}({kind} value, {kind} *parts, int thread)\n{{\n"
            f"    value = {warp}(value);\n"
            f"    if (thread % {WARP} == 0) parts[thread / {WARP}] = value;\n    __syncthreads();\n"
            f"    return {warp}({part});\n}}\n",
        )
        return name


def neutral_text(reducer: Reducer, x: CudaExpressions) -> str:
    """The value that changes nothing when combined, as text."""
    value = neutral_number(reducer)
    if value is None:
        _refuse(reducer)
    return x.text(Const(value, reducer.dtype))  # type: ignore[arg-type]  # refused above


def _refuse(reducer: Reducer) -> str:
    raise ScheduleError(
        "a custom reduction cannot be shared by threads",
        why=f"it has no known neutral element: {reducer.name}",
    )
