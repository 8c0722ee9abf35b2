"""Mistakes at the call: arguments, dtypes, shapes, `out=`, options, targets."""

from __future__ import annotations

from polyopt.errors import (
    ArgumentError,
    BackendUnavailable,
    BoundsError,
    CallError,
    DefinitionError,
    DTypeError,
    ShapeError,
)
from tests.errors.mistake import Mistake

ADD = """
@po.op
def add(a: f32[N], b: f32[N]):
    y = po.tensor("y")
    y[i] = a[i] + b[i]
    return y

one = np.ones(4, np.float32)
"""

MATMUL = """
@po.op
def matmul(a: f32[M, K], b: f32[K, N]):
    c = po.tensor("c")
    c[i, j] += a[i, k] * b[k, j]
    return c
"""

POWER = """
@po.op
def power(x: f32[N], steps: int):
    u = po.tensor("u")
    t = po.index("t", extent=steps)
    u[0, i] = x[i]
    u[t + 1, i] = x[i] * u[t, i]
    return u[steps]

one = np.ones(4, np.float32)
"""

MISTAKES = (
    Mistake(
        name="sizes_that_contradict_each_other",
        error=ShapeError,
        program=MATMUL + "matmul(np.ones((2, 3), np.float32), np.ones((4, 5), np.float32))",
        says=("K", "3", "4", "a.shape[1]", "b.shape[0]"),
        fixed=MATMUL + "assert matmul(np.ones((2, 3), np.float32), np.ones((3, 5), np.float32)).shape == (2, 5)",
    ),
    Mistake(
        name="an_extent_that_differs_from_the_annotation",
        error=ShapeError,
        program="""
        @po.op
        def norms(p: f32[N, 3]):
            y = po.tensor("y")
            y[i] = po.sqrt(po.sum(p[i, j] ** 2, j))
            return y

        norms(np.ones((5, 4), np.float32))
        """,
        says=("p.shape[1]", "3", "4"),
        fixed="""
        @po.op
        def norms(p: f32[N, 3]):
            y = po.tensor("y")
            y[i] = po.sqrt(po.sum(p[i, j] ** 2, j))
            return y

        assert np.allclose(norms(np.ones((5, 3), np.float32)), np.sqrt(3))
        """,
    ),
    Mistake(
        name="an_array_of_another_rank",
        error=ShapeError,
        program=MATMUL + "matmul(np.ones((2, 3), np.float32), np.ones(3, np.float32))",
        says=("'b'", "2", "1"),
        fixed=MATMUL + "assert matmul(np.ones((2, 3), np.float32), np.ones((3, 1), np.float32)).shape == (2, 1)",
    ),
    Mistake(
        name="a_size_below_what_a_dynamic_kernel_needs",
        error=ShapeError,
        program="""
        @po.op(dynamic=True)
        def third(x: f32[N]):
            s = po.tensor("s")
            s[()] = x[2]
            return s

        third(np.ones(2, np.float32))
        """,
        says=("N", "3", "2"),
        fixed="""
        @po.op(dynamic=True)
        def third(x: f32[N]):
            s = po.tensor("s")
            s[()] = x[2]
            return s

        assert third(np.ones(3, np.float32)) == 1
        """,
    ),
    Mistake(
        name="an_array_of_another_dtype",
        error=DTypeError,
        program=ADD + "add(one, np.ones(4))",
        says=("'b'", "f32", "float64"),
        fixed=ADD + "assert add(one, np.ones(4).astype(np.float32)).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_array_in_another_byte_order",
        error=DTypeError,
        program=ADD + "add(one, one.astype('>f4'))",
        says=("'b'", "byte order"),
        fixed=ADD + "assert add(one, one.astype('>f4').astype('=f4')).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_array_of_objects",
        error=DTypeError,
        program=ADD + "add(one, one.astype(object))",
        says=("'b'", "object"),
        fixed=ADD + "assert add(one, one.astype(object).astype(np.float32)).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_array_of_complex_numbers",
        error=DTypeError,
        program=ADD + "add(one, one.astype(np.complex64))",
        says=("'b'", "complex64"),
        fixed=ADD + "assert add(one, one.astype(np.complex64).real).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_array_of_strings",
        error=DTypeError,
        program=ADD + "add(one, np.array(['1', '2', '3', '4']))",
        says=("'b'",),
        fixed=ADD + "assert add(one, np.array(['1', '2', '3', '4']).astype(np.float32)).tolist() == [2, 3, 4, 5]",
    ),
    Mistake(
        name="a_masked_array",
        error=ArgumentError,
        program=ADD + "add(one, np.ma.masked_array(one, mask=[0, 1, 0, 0]))",
        says=("'b'", "masked"),
        fixed=ADD + "assert add(one, np.ma.masked_array(one, mask=[0, 1, 0, 0]).filled(0)).tolist() == [2, 1, 2, 2]",
    ),
    Mistake(
        name="something_that_is_no_array",
        error=ArgumentError,
        program=ADD + "add(one, {'b': one})",
        says=("'b'", "dict"),
        fixed=ADD + "assert add(one, b=one).tolist() == [2] * 4",
    ),
    Mistake(
        name="a_missing_argument",
        error=CallError,
        program=ADD + "add(one)",
        says=("'b'", "add"),
        fixed=ADD + "assert add(one, one).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_argument_too_many",
        error=CallError,
        program=ADD + "add(one, one, one)",
        says=("add", "2", "3"),
        fixed=ADD + "assert add(one, one, out=one.copy()).tolist() == [2] * 4",
    ),
    Mistake(
        name="a_misspelt_keyword",
        error=CallError,
        program=ADD + "add(one, one, ouput=one.copy())",
        says=("'ouput'", "add"),
        fixed=ADD + "assert add(one, one, out=one.copy()).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_array_where_a_constant_belongs",
        error=ArgumentError,
        program=POWER + "power(one, one)",
        says=("'steps'", "int"),
        fixed=POWER + "assert power(one, 3).tolist() == [1] * 4",
    ),
    Mistake(
        name="a_float_where_an_int_belongs",
        error=ArgumentError,
        program=POWER + "power(one, 2.5)",
        says=("'steps'", "int", "2.5"),
        fixed=POWER + "assert power(one, 2).tolist() == [1] * 4",
    ),
    Mistake(
        name="a_list_where_a_constant_belongs",
        error=ArgumentError,
        program=POWER + "power(one, [1, 2])",
        says=("'steps'", "int", "list"),
        fixed=POWER + "assert power(one, len([1, 2])).tolist() == [1] * 4",
    ),
    Mistake(
        name="a_negative_number_of_steps",
        error=BoundsError,
        program=POWER + "power(one, -3)",
        says=("u[-2",),
        fixed=POWER + "assert power(one, 0).tolist() == [1] * 4",
    ),
    Mistake(
        name="an_array_where_a_scalar_belongs",
        error=ArgumentError,
        program="""
        @po.op
        def scaled(alpha: f32, x: f32[N]):
            y = po.tensor("y")
            y[i] = alpha * x[i]
            return y

        scaled(np.ones(3, np.float32), np.ones(3, np.float32))
        """,
        says=("'alpha'", "scalar"),
        fixed="""
        @po.op
        def scaled(alpha: f32, x: f32[N]):
            y = po.tensor("y")
            y[i] = alpha * x[i]
            return y

        assert scaled(2.0, np.ones(3, np.float32)).tolist() == [2, 2, 2]
        """,
    ),
    Mistake(
        name="a_read_only_out",
        error=ArgumentError,
        program=ADD + "out = one.copy()\nout.flags.writeable = False\nadd(one, one, out=out)",
        says=("out", "read-only"),
        fixed=ADD + "out = one.copy()\nadd(one, one, out=out)\nassert out.tolist() == [2] * 4",
    ),
    Mistake(
        name="an_out_of_another_shape",
        error=ShapeError,
        program=ADD + "add(one, one, out=np.empty(5, np.float32))",
        says=("out", "(4,)", "(5,)"),
        fixed=ADD + "assert add(one, one, out=np.empty(4, np.float32)).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_out_of_another_dtype",
        error=DTypeError,
        program=ADD + "add(one, one, out=np.empty(4))",
        says=("out", "f32", "float64"),
        fixed=ADD + "assert add(one, one, out=np.empty(4, np.float32)).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_out_whose_elements_share_memory",
        error=ArgumentError,
        program=ADD + "add(one, one, out=np.lib.stride_tricks.as_strided(one.copy(), (4,), (0,)))",
        says=("out", "stride"),
        fixed=ADD + "assert add(one, one, out=np.empty(4, np.float32)).tolist() == [2] * 4",
    ),
    Mistake(
        name="one_out_for_two_results",
        error=ArgumentError,
        program="""
        @po.op
        def both(x: f32[N]):
            y, z = po.tensors("y z")
            y[i] = x[i] + 1
            z[i] = x[i] + 2
            return y, z

        both(np.ones(3, np.float32), out=np.empty(3, np.float32))
        """,
        says=("out", "2"),
        fixed="""
        @po.op
        def both(x: f32[N]):
            y, z = po.tensors("y z")
            y[i] = x[i] + 1
            z[i] = x[i] + 2
            return y, z

        y, z = both(np.ones(3, np.float32), out=(np.empty(3, np.float32), np.empty(3, np.float32)))
        assert y.tolist() == [2, 2, 2] and z.tolist() == [3, 3, 3]
        """,
    ),
    Mistake(
        name="an_extent_that_cannot_be_read",
        error=DefinitionError,
        program="""
        @po.op
        def double(x: f32["2N"]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        double(np.ones(3, np.float32))
        """,
        says=("'x'", "2N"),
        fixed="""
        @po.op
        def double(x: f32["N"]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(3, np.float32)).tolist() == [2, 2, 2]
        """,
    ),
    Mistake(
        name="an_unknown_option_value",
        error=ArgumentError,
        program="""
        @po.op(numerics="quick")
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y
        """,
        says=("numerics", "quick", "fast"),
        fixed="""
        @po.op(numerics="fast")
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(3, np.float32)).tolist() == [2, 2, 2]
        """,
    ),
    Mistake(
        name="a_dynamic_size_that_is_no_size",
        error=ArgumentError,
        program="""
        @po.op(dynamic=["Q"])
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        double(np.ones(3, np.float32))
        """,
        says=("'Q'", "N"),
        fixed="""
        @po.op(dynamic=["N"])
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(3, np.float32)).tolist() == [2, 2, 2]
        """,
    ),
    Mistake(
        name="a_target_that_is_no_target",
        error=ArgumentError,
        program=ADD + "add.on('tpu')(one, one)",
        says=("tpu", "cpu", "cuda"),
        fixed=ADD + "assert add.on('cpu')(one, one).tolist() == [2] * 4",
    ),
    Mistake(
        name="compiling_for_a_size_that_is_no_size",
        error=ArgumentError,
        program=ADD + "add.compile(N=4, Q=3)",
        says=("'Q'", "N"),
        fixed=ADD + "add.compile(N=4)\nassert add(one, one).tolist() == [2] * 4",
    ),
    Mistake(
        name="an_einsum_whose_extents_differ",
        error=ShapeError,
        program="po.einsum('ij,jk->ik', np.ones((2, 3)), np.ones((4, 5)))",
        says=("'j'", "3", "4"),
        fixed="assert po.einsum('ij,jk->ik', np.ones((2, 3)), np.ones((3, 5))).shape == (2, 5)",
    ),
    Mistake(
        name="an_einsum_of_complex_numbers",
        error=DTypeError,
        program="po.einsum('i,i', np.ones(3, complex), np.ones(3))",
        says=("complex128",),
        fixed="assert po.einsum('i,i', np.ones(3), np.ones(3)) == 3",
    ),
    Mistake(
        name="an_einsum_with_too_few_arrays",
        error=ArgumentError,
        program="po.einsum('ij,jk->ik', np.ones((2, 3)))",
        says=("2", "1"),
        fixed="assert po.einsum('ij->ji', np.ones((2, 3))).shape == (3, 2)",
    ),
    Mistake(
        name="a_gpu_that_is_not_there",
        error=BackendUnavailable,
        program=ADD + "add.on('cuda')(one, one)",
        says=("cuda",),
        fixed=ADD + "assert add.on('cpu')(one, one).tolist() == [2] * 4",
    ),
    Mistake(
        name="a_float_beyond_all_floats",
        error=ArgumentError,
        program="""
        @po.op
        def times(x: f64[N], by: float):
            return by * x

        times(np.ones(2), 10**400)
        """,
        says=("'by'", "2**1024"),
        fixed="""
        @po.op
        def times(x: f64[N], by: float):
            return by * x

        assert times(np.ones(2), 10**300).tolist() == [1e300, 1e300]
        """,
    ),
    Mistake(
        name="an_array_interface_without_memory",
        error=ArgumentError,
        program=ADD
        + """
class Lent:
    __array_interface__ = {"data": None, "shape": (4,), "typestr": "<f4", "version": 3}

add(one, Lent())
""",
        says=("'b'", "Lent", "cannot be read"),
        fixed=ADD + "assert add(one, one).tolist() == [2, 2, 2, 2]",
    ),
    Mistake(
        name="tuning_that_is_no_truth_value",
        error=ArgumentError,
        program="po.op(tune='yes')(lambda x: 2 * x)",
        says=("'yes'", "True or False"),
        fixed="assert po.op(tune=False)(lambda x: 2 * x)(np.ones(2)).tolist() == [2, 2]",
    ),
)
