"""LLVM IR as text: value numbering."""

from __future__ import annotations

from polyopt.codegen_c.llvm_text import Function, Module, Value
from polyopt.codegen_c.values import binary


def test_a_value_that_a_math_function_computed_has_its_type_where_a_statement_computes_it_again() -> None:
    f = Function(Module(vector_bits=256), "f", [("float", "a"), ("float", "b")])
    f.flags = "contract "
    name = f.pure_text("fadd contract float %a, %b")  # how the expansion of tanh, say, appends its instructions
    again = binary(f, "fadd", Value("%a", "float"), Value("%b", "float"), f.flags)
    assert (again.text, again.type) == (name, "float")
    assert binary(f, "fmul", Value("%a", "float"), again).type == "float"
