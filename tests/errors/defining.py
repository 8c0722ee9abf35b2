"""Mistakes in systems of equations: holes, contradictions, cycles, free indices, dtypes."""

from __future__ import annotations

from polyopt.errors import DefinitionError, DTypeError, ShapeError
from tests.errors.mistake import Mistake

MISTAKES = (
    Mistake(
        name="two_definitions_of_one_element",
        error=DefinitionError,
        program="""
        @po.op
        def first_is_zero(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i]
            y[0] = 0  # <-
            return y

        first_is_zero(np.ones(5, np.float32))
        """,
        caret="y[0]",
        says=("y[0]", "two"),
        fixed="""
        @po.op
        def first_is_zero(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.when(i > 0, x[i])
            y[0] = 0
            return y

        assert first_is_zero(np.ones(5, np.float32)).tolist() == [0, 1, 1, 1, 1]
        """,
    ),
    Mistake(
        name="guards_that_overlap",
        error=DefinitionError,
        program="""
        @po.op
        def split(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.when(i <= 2, x[i])
            y[i] = po.when(i >= 2, -x[i])  # <-
            return y

        split(np.ones(5, np.float32))
        """,
        caret="y[i]",
        says=("y[2]", "two"),
        fixed="""
        @po.op
        def split(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.when(i <= 2, x[i])
            y[i] = po.when(i > 2, -x[i])
            return y

        assert split(np.ones(5, np.float32)).tolist() == [1, 1, 1, -1, -1]
        """,
    ),
    Mistake(
        name="one_element_from_many_instances",
        error=DefinitionError,
        program="""
        @po.op
        def last(a: f32[M, N]):
            y = po.tensor("y")
            y[i + j] = a[i, j]  # <-
            return y

        last(np.ones((3, 3), np.float32))
        """,
        caret="y[i + j]",
        says=("y[1]",),
        fixed="""
        @po.op
        def antidiagonals(a: f32[M, N]):
            y = po.tensor("y")
            y[i + j] += a[i, j]
            return y

        assert antidiagonals(np.ones((3, 3), np.float32)).tolist() == [1, 2, 3, 2, 1]
        """,
    ),
    Mistake(
        name="returning_a_tensor_with_a_hole",
        error=DefinitionError,
        program="""
        @po.op
        def spread(x: f32[N]):
            y = po.tensor("y")
            y[2 * i] = x[i]
            return y

        spread(np.ones(3, np.float32))
        """,
        says=("y[1]",),
        fixed="""
        @po.op
        def spread(x: f32[N]):
            y = po.tensor("y")
            y[2 * i] = x[i]
            y[2 * i + 1] = po.when(i < x.shape[0] - 1, 0 * x[i])
            return y

        assert spread(np.ones(3, np.float32)).tolist() == [1, 0, 1, 0, 1]
        """,
    ),
    Mistake(
        name="a_triangle_returned_as_a_matrix",
        error=DefinitionError,
        program="""
        @po.op
        def lower(a: f32[N, N]):
            t = po.tensor("t")
            t[i, j] = po.when(j <= i, a[i, j])
            return t

        lower(np.ones((4, 4), np.float32))
        """,
        says=("t[0, 1]",),
        fixed="""
        @po.op
        def lower(a: f32[N, N]):
            t = po.tensor("t")
            t[i, j] = po.where(j <= i, a[i, j], 0)
            return t

        assert np.array_equal(lower(np.ones((4, 4), np.float32)), np.tri(4))
        """,
    ),
    Mistake(
        name="a_difference_whose_first_element_is_missing",
        error=DefinitionError,
        program="""
        @po.op
        def backward(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] - x[i - 1]
            return y

        backward(np.ones(10, np.float32))
        """,
        says=("y[0]",),
        fixed="""
        @po.op
        def backward(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] - x[i - 1]
            y[0] = x[0]
            return y

        x = rng.random(10, dtype=np.float32)
        assert np.allclose(backward(x), np.diff(x, prepend=0))
        """,
    ),
    Mistake(
        name="a_recurrence_without_a_start",
        error=DefinitionError,
        program="""
        @po.op
        def scan(x: f32[N]):
            s = po.tensor("s")
            t = po.index("t", 1, N)
            s[t] = s[t - 1] + x[t]  # <-
            return s

        scan(np.ones(5, np.float32))
        """,
        caret="s[t - 1]",
        says=("s[0]",),
        fixed="""
        @po.op
        def scan(x: f32[N]):
            s = po.tensor("s")
            t = po.index("t", 1, N)
            s[0] = x[0]
            s[t] = s[t - 1] + x[t]
            return s

        x = rng.random(5, dtype=np.float32)
        assert np.allclose(scan(x), np.cumsum(x))
        """,
    ),
    Mistake(
        name="an_element_that_data_makes_earlier",
        error=DefinitionError,
        program="""
        @po.op
        def ways_to_pay(coins: i64[N], total: int):
            n, s = po.index("n", extent=N), po.index("s", extent=total + 1)
            ways = po.tensor("ways")
            ways[0, s] = po.where(s == 0, 1, 0)
            left = po.cast(s, i64) - coins[n]
            ways[n + 1, s] = ways[n, s] + po.where(left >= 0, ways[n + 1, po.maximum(left, 0)], 0)  # <-
            return ways[N]

        ways_to_pay(np.array([1, 2, 5]), 10)
        """,
        caret="ways[n + 1, s]",
        says=("ways[1, 0]", "itself", "data", "row t - 1"),
        fixed="""
        @po.op
        def ways_to_pay(coins: i64[N], total: int):
            n, s, many = po.index("n", extent=N), po.index("s", extent=total + 1), po.index("many", extent=total + 1)
            ways = po.tensor("ways")
            ways[0, s] = po.where(s == 0, 1, 0)
            left = po.cast(s, i64) - many * coins[n]
            ways[n + 1, s] = po.sum(po.where(left >= 0, ways[n, po.maximum(left, 0)], 0), many)
            return ways[N]

        assert ways_to_pay(np.array([1, 2, 5]), 10).tolist() == [1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 10]
        """,
    ),
    Mistake(
        name="an_element_defined_by_itself",
        error=DefinitionError,
        program="""
        @po.op
        def bump(x: f32[N]):
            y = po.tensor("y")
            i = po.index("i", extent=N)
            y[i] = y[i] + x[i]  # <-
            return y

        bump(np.ones(5, np.float32))
        """,
        caret="y[i]",
        says=("y[0]", "itself"),
        fixed="""
        @po.op
        def bump(x: f32[N]):
            y = po.tensor("y")
            y[i] = 1
            y[i] += x[i]
            return y

        assert bump(np.ones(5, np.float32)).tolist() == [2] * 5
        """,
    ),
    Mistake(
        name="two_tensors_defined_by_each_other",
        error=DefinitionError,
        program="""
        @po.op
        def chicken(x: f32[N]):
            hen, egg = po.tensors("hen egg")
            hen[i] = egg[i] + x[i]  # <-
            egg[i] = hen[i] * x[i]
            return egg

        chicken(np.ones(3, np.float32))
        """,
        caret="hen[i]",
        says=("hen[0] needs egg[0] needs hen[0]", "i = 0"),
        fixed="""
        @po.op
        def chicken(x: f32[N]):
            hen, egg = po.tensors("hen egg")
            hen[0] = x[0]
            t = po.index("t", 1, N)
            hen[t] = egg[t - 1] + x[t]
            egg[i] = hen[i] * x[i]
            return egg

        assert chicken(np.ones(3, np.float32)).tolist() == [1, 2, 3]
        """,
    ),
    Mistake(
        name="a_tensor_that_is_never_defined",
        error=DefinitionError,
        program="""
        @po.op
        def scaled(x: f32[N]):
            y, weight = po.tensors("y weight")
            y[i] = x[i] * weight[i]  # <-
            return y

        scaled(np.ones(3, np.float32))
        """,
        caret="weight[i]",
        says=("'weight'",),
        fixed="""
        @po.op
        def scaled(x: f32[N], weight: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] * weight[i]
            return y

        assert scaled(np.ones(3, np.float32), np.ones(3, np.float32)).tolist() == [1, 1, 1]
        """,
    ),
    Mistake(
        name="an_index_on_the_right_of_a_plain_definition",
        error=DefinitionError,
        program="""
        @po.op
        def row_sums(a: f32[M, N]):
            y = po.tensor("y")
            y[i] = a[i, j]  # <-
            return y

        row_sums(np.ones((2, 3), np.float32))
        """,
        caret="y[i]",
        says=("'j'", "+="),
        fixed="""
        @po.op
        def row_sums(a: f32[M, N]):
            y = po.tensor("y")
            y[i] += a[i, j]
            return y

        assert row_sums(np.ones((2, 3), np.float32)).tolist() == [3, 3]
        """,
    ),
    Mistake(
        name="a_summed_index_used_outside_its_sum",
        error=DefinitionError,
        program="""
        @po.op
        def weighted(a: f32[M, N], w: f32[N]):
            y = po.tensor("y")
            y[i] = po.sum(a[i, j], j) * w[j]  # <-
            return y

        weighted(np.ones((2, 3), np.float32), np.ones(3, np.float32))
        """,
        caret="y[i]",
        says=("'j'",),
        fixed="""
        @po.op
        def weighted(a: f32[M, N], w: f32[N]):
            y = po.tensor("y")
            y[i] = po.sum(a[i, j] * w[j], j)
            return y

        assert weighted(np.ones((2, 3), np.float32), np.ones(3, np.float32)).tolist() == [3, 3]
        """,
    ),
    Mistake(
        name="a_guard_inside_an_expression",
        error=DefinitionError,
        program="""
        @po.op
        def bump(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] + po.when(i > 0, 1.0)  # <-
            return y

        bump(np.ones(3, np.float32))
        """,
        caret="po.when(i > 0, 1.0)",
        says=("po.where",),
        fixed="""
        @po.op
        def bump(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] + po.where(i > 0, 1.0, 0.0)
            return y

        assert bump(np.ones(3, np.float32)).tolist() == [1, 2, 2]
        """,
    ),
    Mistake(
        name="a_guard_on_data",
        error=DefinitionError,
        program="""
        @po.op
        def positive(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.when(x[i] > 0, x[i])  # <-
            return y

        positive(np.ones(3, np.float32))
        """,
        caret="x[i]",
        says=("po.where",),
        fixed="""
        @po.op
        def positive(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(x[i] > 0, x[i], 0)
            return y

        assert positive(np.array([1, -1], np.float32)).tolist() == [1, 0]
        """,
    ),
    Mistake(
        name="a_maximum_over_nothing",
        error=DefinitionError,
        program="""
        @po.op
        def row_max(a: f32[M, N]):
            y = po.tensor("y")
            y[i] = po.max(a[i, j], j)  # <-
            return y

        row_max(np.ones((2, 0), np.float32))
        """,
        caret="po.max(a[i, j], j)",
        says=("init=",),
        fixed="""
        @po.op
        def row_max(a: f32[M, N]):
            y = po.tensor("y")
            y[i] = po.max(a[i, j], j, init=0)
            return y

        assert row_max(np.ones((2, 0), np.float32)).tolist() == [0, 0]
        """,
    ),
    Mistake(
        name="a_maximum_whose_condition_leaves_nothing",
        error=DefinitionError,
        program="""
        @po.op
        def best_before(x: f32[N]):
            y = po.tensor("y")
            j = po.index("j", extent=N)
            y[i] = po.max(x[j], j, where=j < i) + 0 * x[i]  # <-
            return y

        best_before(np.ones(4, np.float32))
        """,
        caret="po.max(x[j], j, where=j < i)",
        says=("i = 0", "init="),
        fixed="""
        @po.op
        def best_before(x: f32[N]):
            y = po.tensor("y")
            j = po.index("j", extent=N)
            y[i] = po.max(x[j], j, where=j < i, init=0) + 0 * x[i]
            return y

        assert best_before(np.ones(4, np.float32)).tolist() == [0, 1, 1, 1]
        """,
    ),
    Mistake(
        name="a_negative_extent",
        error=ShapeError,
        program="""
        @po.op
        def tail(x: f32[N]):
            y = po.tensor("y", shape=(N - 5,))
            y[i] = x[i + 5]
            return y

        tail(np.ones(3, np.float32))
        """,
        says=("y", "-2"),
        fixed="""
        @po.op
        def tail(x: f32[N]):
            y = po.tensor("y", shape=(N - 5,))
            y[i] = x[i + 5]
            return y

        assert tail(np.ones(8, np.float32)).tolist() == [1, 1, 1]
        """,
    ),
    Mistake(
        name="an_index_with_two_extents",
        error=ShapeError,
        program="""
        @po.op
        def add(a: f32[M], b: f32[N]):
            y = po.tensor("y")
            y[i] = a[i] + b[i]  # <-
            return y

        add(np.ones(3, np.float32), np.ones(4, np.float32))
        """,
        caret="b[i]",
        says=("'i'", "3", "4"),
        fixed="""
        @po.op
        def add(a: f32[N], b: f32[N]):
            y = po.tensor("y")
            y[i] = a[i] + b[i]
            return y

        assert add(np.ones(3, np.float32), np.ones(3, np.float32)).tolist() == [2, 2, 2]
        """,
    ),
    Mistake(
        name="tensors_that_do_not_broadcast",
        error=ShapeError,
        program="""
        @po.op
        def add(a: f32[M, N], b: f32[M]):
            return a + b  # <-

        add(np.ones((2, 3), np.float32), np.ones(2, np.float32))
        """,
        caret="a + b",
        says=("3", "2"),
        fixed="""
        @po.op
        def add(a: f32[M, N], b: f32[N]):
            return a + b

        assert add(np.ones((2, 3), np.float32), np.ones(3, np.float32)).tolist() == [[2] * 3] * 2
        """,
    ),
    Mistake(
        name="a_reduction_over_an_axis_that_is_not_there",
        error=ShapeError,
        program="""
        @po.op
        def total(a: f32[M, N]):
            return po.sum(a, axis=2)  # <-

        total(np.ones((2, 3), np.float32))
        """,
        caret="po.sum(a, axis=2)",
        says=("2",),
        fixed="""
        @po.op
        def total(a: f32[M, N]):
            return po.sum(a, axis=1)

        assert total(np.ones((2, 3), np.float32)).tolist() == [3, 3]
        """,
    ),
    Mistake(
        name="a_reshape_with_another_number_of_elements",
        error=ShapeError,
        program="""
        @po.op
        def pairs(x: f32[6]):
            return x.reshape(4, 2)  # <-

        pairs(np.ones(6, np.float32))
        """,
        caret="x.reshape(4, 2)",
        says=("(6)", "(4, 2)"),
        fixed="""
        @po.op
        def pairs(x: f32[6]):
            return x.reshape(3, 2)

        assert pairs(np.ones(6, np.float32)).shape == (3, 2)
        """,
    ),
    Mistake(
        name="bits_of_a_float",
        error=DTypeError,
        program="""
        @po.op
        def odd(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] & 1  # <-
            return y

        odd(np.ones(3, np.float32))
        """,
        caret="x[i] & 1",
        says=("f32", "&"),
        fixed="""
        @po.op
        def odd(x: i32[N]):
            y = po.tensor("y")
            y[i] = x[i] & 1
            return y

        assert odd(np.arange(3, dtype=np.int32)).tolist() == [0, 1, 0]
        """,
    ),
    Mistake(
        name="defining_a_parameter",
        error=DefinitionError,
        program="""
        @po.op
        def clear(x: f32[N]):
            x[i] = 0  # <-
            return x

        clear(np.ones(3, np.float32))
        """,
        caret="x[i]",
        says=("'x'",),
        fixed="""
        @po.op
        def clear(x: f32[N]):
            y = po.tensor("y")
            y[i] = 0 * x[i]
            return y

        assert clear(np.ones(3, np.float32)).tolist() == [0, 0, 0]
        """,
    ),
    Mistake(
        name="a_tensor_of_another_operator",
        error=DefinitionError,
        program="""
        kept = []

        @po.op
        def first(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            kept.append(y)
            return y

        @po.op
        def second(x: f32[N]):
            z = po.tensor("z")
            z[i] = x[i] + kept[0][i]  # <-
            return z

        first(np.ones(3, np.float32))
        second(np.ones(3, np.float32))
        """,
        caret="kept[0][i]",
        says=("'y'",),
        fixed="""
        @po.op
        def first(x: f32[N]):
            y = po.tensor("y")
            y[i] = 2 * x[i]
            return y

        @po.op
        def second(x: f32[N]):
            z = po.tensor("z")
            y = first(x)
            z[i] = x[i] + y[i]
            return z

        assert second(np.ones(3, np.float32)).tolist() == [3, 3, 3]
        """,
    ),
    Mistake(
        name="a_pad_that_the_dtype_does_not_hold",
        error=DTypeError,
        program="""
        @po.op
        def before(x: i32[N]):
            y = po.tensor("y", shape=(N,))
            y[i] = x.pad(2.5)[i - 1]  # <-
            return y

        before(np.arange(3, dtype=np.int32))
        """,
        caret="x.pad(2.5)[i - 1]",
        says=("2.5", "i32", "po.cast(x, f64).pad"),
        fixed="""
        @po.op
        def before(x: i32[N]):
            y = po.tensor("y", shape=(N,))
            y[i] = po.cast(x, f64).pad(2.5)[i - 1]
            return y

        assert before(np.arange(3, dtype=np.int32)).tolist() == [2.5, 0, 1]
        """,
    ),
    Mistake(
        name="an_annotation_with_fewer_than_no_elements",
        error=DefinitionError,
        program="""
        @po.op  # <-
        def copy(x: f64[-1]):
            y = po.tensor("y")
            y[i] = x[i]
            return y
        """,
        says=("'-1'", "'x'", "size"),
        fixed="""
        @po.op
        def copy(x: f64[N]):
            y = po.tensor("y")
            y[i] = x[i]
            return y

        assert copy(np.ones(2)).tolist() == [1, 1]
        """,
    ),
    Mistake(
        name="an_array_of_one_of_two_dtypes",
        error=DefinitionError,
        program="""
        @po.op
        def scaled(x: f64[N], w: f64[N] | f32[N]):
            y = po.tensor("y")
            y[i] = x[i] * w[i]
            return y
        """,
        says=("f64[N] and f32[N]", "no annotation"),
        fixed="""
        @po.op
        def scaled(x: f64[N], w):
            y = po.tensor("y")
            y[i] = x[i] * w[i]
            return y

        assert scaled(np.ones(2), np.full(2, 3.0)).tolist() == [3, 3]
        assert scaled(np.ones(2), np.full(2, 3, np.float32)).tolist() == [3, 3]
        """,
    ),
    Mistake(
        name="op_above_classmethod",
        error=DefinitionError,
        program="""
        class Norms:
            @po.op
            @classmethod
            def twice(cls, x: f64[N]):
                return 2 * x
        """,
        says=("@po.op stands above @classmethod", "write @classmethod above @po.op"),
        fixed="""
        class Norms:
            @classmethod
            @po.op
            def twice(cls, x: f64[N]):
                return 2 * x

        assert Norms.twice(np.ones(2)).tolist() == [2, 2]
        """,
    ),
    Mistake(
        name="an_op_of_a_type",
        error=DefinitionError,
        program="po.op(int)",
        says=("a function of equations", "<class 'int'>"),
        fixed="assert po.op(lambda x: 2 * x)(np.ones(2)).tolist() == [2, 2]",
    ),
)
