"""Mistakes of people who write Python: `and`, `if`, builtins, NumPy functions, a forgotten return."""

from __future__ import annotations

from polyopt.dsl.tensor import UnknownAttribute
from polyopt.errors import DefinitionError, ShapeError
from tests.errors.mistake import Mistake

MISTAKES = (
    Mistake(
        name="arithmetic_on_a_tensor_without_an_end",
        error=DefinitionError,
        program="""
        @po.op
        def shifted(x: f32[N]):
            return x.clamp() + 1  # <-

        shifted(np.ones(2, np.float32))
        """,
        caret="x.clamp() + 1",
        says=("A whole tensor of rank 1", "subscript it: x.clamp()[i]"),
        fixed="""
        i = po.index("i")

        @po.op
        def shifted(x: f32[N]):
            y = po.tensor("y", shape=(N,))
            y[i] = x.clamp()[i + 1] + 1
            return y

        assert shifted(np.ones(2, np.float32)).tolist() == [2, 2]
        """,
    ),
    Mistake(
        name="a_reduction_of_ones_own_of_a_whole_tensor_over_an_index",
        error=DefinitionError,
        program="""
        i = po.index("i")

        @po.op
        def total(x: f32[N]):
            return po.reduce(lambda a, b: a + b, x, i)  # <-

        total(np.ones(2, np.float32))
        """,
        caret="po.reduce(lambda a, b: a + b, x, i)",
        says=("po.reduce of a whole tensor", "po.reduce(lambda a, b: ..., x[i, k], k)"),
        fixed="""
        i = po.index("i")

        @po.op
        def total(x: f32[N]):
            return po.reduce(lambda a, b: a + b, x[i], i)

        assert total(np.ones(2, np.float32)) == 2
        """,
    ),
    Mistake(
        name="a_method_of_arrays",
        error=UnknownAttribute,
        program="""
        @po.op
        def total(x: f32[M, N]):
            return x.sum(axis=1)  # <-

        total(np.ones((2, 3), np.float32))
        """,
        caret="x.sum",
        says=("no attribute 'sum'", "po.sum(...)"),
        fixed="""
        @po.op
        def total(x: f32[M, N]):
            return po.sum(x, axis=1)

        assert total(np.ones((2, 3), np.float32)).tolist() == [3, 3]
        """,
    ),
    Mistake(
        name="a_dtype_as_arrays_change_it",
        error=UnknownAttribute,
        program="""
        @po.op
        def whole(x: f32[N]):
            return x.astype(i32)  # <-

        whole(np.ones(2, np.float32))
        """,
        caret="x.astype",
        says=("no attribute 'astype'", "po.cast(x, f32)"),
        fixed="""
        @po.op
        def whole(x: f32[N]):
            return po.cast(x, i32)

        assert whole(np.ones(2, np.float32)).dtype == np.int32
        """,
    ),
    Mistake(
        name="a_mask_as_a_subscript",
        error=DefinitionError,
        program="""
        @po.op
        def positive(x: f32[N]):
            return po.sum(x[x > 0])  # <-

        positive(np.array([-1, 2], np.float32))
        """,
        caret="x[x > 0]",
        says=("mask", "po.where(mask, x, 0)"),
        fixed="""
        @po.op
        def positive(x: f32[N]):
            return po.sum(po.where(x > 0, x, 0))

        assert positive(np.array([-1, 2], np.float32)) == 2
        """,
    ),
    Mistake(
        name="and_between_conditions",
        error=DefinitionError,
        program="""
        @po.op
        def inner(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where((i > 0) and (i < N - 1), x[i], 0)  # <-
            return y

        inner(np.ones(4, np.float32))
        """,
        caret="(i > 0) and (i < N - 1)",
        says=("&",),
        fixed="""
        @po.op
        def inner(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where((i > 0) & (i < N - 1), x[i], 0)
            return y

        assert inner(np.ones(4, np.float32)).tolist() == [0, 1, 1, 0]
        """,
    ),
    Mistake(
        name="not_before_a_condition",
        error=DefinitionError,
        program="""
        @po.op
        def others(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(not (i > 0), x[i], 0)  # <-
            return y

        others(np.ones(4, np.float32))
        """,
        caret="not (i > 0)",
        says=("~",),
        fixed="""
        @po.op
        def others(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(~(i > 0), x[i], 0)
            return y

        assert others(np.ones(4, np.float32)).tolist() == [1, 0, 0, 0]
        """,
    ),
    Mistake(
        name="a_chained_comparison",
        error=DefinitionError,
        program="""
        @po.op
        def inner(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(0 < i < N - 1, x[i], 0)  # <-
            return y

        inner(np.ones(4, np.float32))
        """,
        caret="0 < i < N - 1",
        says=("&",),
        fixed="""
        @po.op
        def inner(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where((0 < i) & (i < N - 1), x[i], 0)
            return y

        assert inner(np.ones(4, np.float32)).tolist() == [0, 1, 1, 0]
        """,
    ),
    Mistake(
        name="if_on_data",
        error=DefinitionError,
        program="""
        @po.op
        def relu(x: f32[N]):
            y = po.tensor("y")
            if x[i] > 0:  # <-
                y[i] = x[i]
            else:
                y[i] = 0
            return y

        relu(np.ones(4, np.float32))
        """,
        caret="x[i] > 0",
        says=("po.where",),
        fixed="""
        @po.op
        def relu(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(x[i] > 0, x[i], 0)
            return y

        assert relu(np.array([1, -1], np.float32)).tolist() == [1, 0]
        """,
    ),
    Mistake(
        name="the_builtin_max",
        error=DefinitionError,
        program="""
        @po.op
        def relu(x: f32[N]):
            y = po.tensor("y")
            y[i] = max(x[i], 0)  # <-
            return y

        relu(np.ones(4, np.float32))
        """,
        caret="max(x[i], 0)",
        says=("Python's max", "po.maximum(a, b)", "po.where"),
        fixed="""
        @po.op
        def relu(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.maximum(x[i], 0)
            return y

        assert relu(np.array([1, -1], np.float32)).tolist() == [1, 0]
        """,
    ),
    Mistake(
        name="the_builtin_sum",
        error=DefinitionError,
        program="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            s[()] = sum(x[i])  # <-
            return s

        total(np.ones(4, np.float32))
        """,
        caret="sum(x[i])",
        says=("index",),
        fixed="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            s[()] = po.sum(x[i], i)
            return s

        assert total(np.ones(4, np.float32)) == 4
        """,
    ),
    Mistake(
        name="a_function_of_math",
        error=DefinitionError,
        program="""
        import math

        @po.op
        def exponential(x: f32[N]):
            y = po.tensor("y")
            y[i] = math.exp(x[i])  # <-
            return y

        exponential(np.ones(4, np.float32))
        """,
        caret="math.exp(x[i])",
        says=("po functions",),
        fixed="""
        @po.op
        def exponential(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.exp(x[i])
            return y

        assert np.allclose(exponential(np.ones(4, np.float32)), np.e)
        """,
    ),
    Mistake(
        name="a_function_of_numpy",
        error=DefinitionError,
        program="""
        @po.op
        def exponential(x: f32[N]):
            y = po.tensor("y")
            y[i] = np.exp(x[i])  # <-
            return y

        exponential(np.ones(4, np.float32))
        """,
        caret="np.exp(x[i])",
        says=("po.",),
        fixed="""
        @po.op
        def exponential(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.exp(x[i])
            return y

        assert np.allclose(exponential(np.ones(4, np.float32)), np.e)
        """,
    ),
    Mistake(
        name="a_numpy_array_subscripted_by_an_index",
        error=DefinitionError,
        program="""
        weights = np.arange(4, dtype=np.float32)

        @po.op
        def scaled(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] * weights[i]  # <-
            return y

        scaled(np.ones(4, np.float32))
        """,
        caret="weights[i]",
        says=("array", "parameter"),
        fixed="""
        weights = np.arange(4, dtype=np.float32)

        @po.op
        def scaled(x: f32[N], weights: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] * weights[i]
            return y

        assert scaled(np.ones(4, np.float32), weights).tolist() == [0, 1, 2, 3]
        """,
    ),
    Mistake(
        name="a_numpy_array_in_an_expression",
        error=DefinitionError,
        program="""
        weights = np.arange(4, dtype=np.float32)

        @po.op
        def scaled(x: f32[N]):
            return x * weights  # <-

        scaled(np.ones(4, np.float32))
        """,
        caret="x * weights",
        says=("array", "parameter"),
        fixed="""
        weights = np.arange(4, dtype=np.float32)

        @po.op
        def scaled(x: f32[N], weights: f32[N]):
            return x * weights

        assert scaled(np.ones(4, np.float32), weights).tolist() == [0, 1, 2, 3]
        """,
    ),
    Mistake(
        name="a_python_loop_over_a_size",
        error=DefinitionError,
        program="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            for n in range(N):  # <-
                s[()] += x[n]
            return s

        total(np.ones(4, np.float32))
        """,
        caret="range(N)",
        says=("N", "index"),
        fixed="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            s[()] += x[i]
            return s

        assert total(np.ones(4, np.float32)) == 4
        """,
    ),
    Mistake(
        name="a_python_loop_over_a_tensor",
        error=DefinitionError,
        program="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            for value in x:  # <-
                s[()] += value
            return s

        total(np.ones(4, np.float32))
        """,
        says=("index",),
        fixed="""
        @po.op
        def total(x: f32[N]):
            s = po.tensor("s")
            s[()] += x[i]
            return s

        assert total(np.ones(4, np.float32)) == 4
        """,
    ),
    Mistake(
        name="the_value_of_an_element_as_a_python_number",
        error=DefinitionError,
        program="""
        @po.op
        def scaled(x: f32[N]):
            y = po.tensor("y")
            factor = float(x[0])  # <-
            y[i] = factor * x[i]
            return y

        scaled(np.ones(4, np.float32))
        """,
        caret="float(x[0])",
        says=("po.cast",),
        fixed="""
        @po.op
        def scaled(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[0] * x[i]
            return y

        assert scaled(np.full(4, 3, np.float32)).tolist() == [9] * 4
        """,
    ),
    Mistake(
        name="a_forgotten_return",
        error=DefinitionError,
        program="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]

        double(np.ones(4, np.float32))
        """,
        says=("'double'", "returns nothing"),
        fixed="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(4, np.float32)).tolist() == [2] * 4
        """,
    ),
    Mistake(
        name="returning_something_that_is_no_tensor",
        error=DefinitionError,
        program="""
        @po.op
        def answer(x: f32[N]):
            return "42"

        answer(np.ones(4, np.float32))
        """,
        says=("str",),
        fixed="""
        @po.op
        def answer(x: f32[N]):
            s = po.tensor("s", dtype=i64)
            s[()] = 42
            return s

        assert answer(np.ones(4, np.float32)) == 42
        """,
    ),
    Mistake(
        name="returning_one_element_with_a_free_index",
        error=DefinitionError,
        program="""
        @po.op
        def double(x: f32[N]):
            return 2 * x[i]

        double(np.ones(4, np.float32))
        """,
        says=("'2 * x[i]'", "'i'"),
        fixed="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(4, np.float32)).tolist() == [2] * 4
        """,
    ),
    Mistake(
        name="a_size_as_an_index",
        error=ShapeError,
        program="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[n] = 2 * x[n]
            return y

        n = po.size("n")
        double(np.ones(4, np.float32))
        """,
        says=("'n'",),
        fixed="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[n] = 2 * x[n]
            return y

        n = po.index("n")
        assert double(np.ones(4, np.float32)).tolist() == [2] * 4
        """,
    ),
    Mistake(
        name="an_index_as_an_extent",
        error=DefinitionError,
        program="""
        @po.op
        def double(x: f32[i]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        double(np.ones(4, np.float32))
        """,
        says=("'x'", "'i'", "size"),
        fixed="""
        @po.op
        def double(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        assert double(np.ones(4, np.float32)).tolist() == [2] * 4
        """,
    ),
    Mistake(
        name="a_conditional_expression",
        error=DefinitionError,
        program="""
        @po.op
        def upper(a: f32[N, N]):
            y = po.tensor("y")
            y[i, j] = a[i, j] if i <= j else 0  # <-
            return y

        upper(np.ones((3, 3), np.float32))
        """,
        caret="i <= j",
        says=("po.where",),
        fixed="""
        @po.op
        def upper(a: f32[N, N]):
            y = po.tensor("y")
            y[i, j] = po.where(i <= j, a[i, j], 0)
            return y

        assert np.array_equal(upper(np.ones((3, 3), np.float32)), np.triu(np.ones((3, 3))))
        """,
    ),
)
