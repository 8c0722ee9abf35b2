"""Mistakes with subscripts, ranges and bounds."""

from __future__ import annotations

from polyopt.errors import BoundsError, DefinitionError, DTypeError
from tests.errors.mistake import Mistake

MISTAKES = (
    Mistake(
        name="a_difference_with_the_element_before",
        error=DefinitionError,
        program="""
        @po.op
        def steps(x: f64[N]):
            y = po.tensor("y")
            y[i] = x[i] - x[i - 1]  # <-
            return y

        steps(np.arange(5.0))
        """,
        caret="y[i]",
        says=(
            "y[0]",
            "for 1 <= i < 5 alone",
            "at i = 0, x[i - 1] would lie outside, at x[-1] (mistake.py:",
            "x.pad(0)",
        ),
        fixed="""
        @po.op
        def steps(x: f64[N]):
            y = po.tensor("y")
            y[i] = x[i] - x.pad(0)[i - 1]
            return y

        assert steps(np.arange(5.0)).tolist() == [0, 1, 1, 1, 1]
        """,
    ),
    Mistake(
        name="the_last_element_by_a_condition",
        error=BoundsError,
        program="""
        @po.op
        def lengths(start: i64[N]):
            end, y = po.tensors("end y")
            end[i] = po.where(i < N - 1, start[i + 1], 10)
            y[i] = end[i] - start[i]  # <-
            return y

        lengths(np.array([0, 4, 7]))
        """,
        caret="end[i]",
        says=(
            "reads end[2] at i = 2",
            "end[i] is defined for 0 <= i < 2 alone",
            "at i = 2, start[i + 1] would lie outside, at start[3] (mistake.py:",
            "po.index('i', extent=...)",
        ),
        fixed="""
        @po.op
        def lengths(start: i64[N]):
            end, y = po.tensors("end y")
            i = po.index("i", extent=N)
            end[i] = po.where(i < N - 1, start[i + 1], 10)
            y[i] = end[i] - start[i]
            return y

        assert lengths(np.array([0, 4, 7])).tolist() == [4, 3, 3]
        """,
    ),
    Mistake(
        name="a_tensor_that_ends_before_its_reader",
        error=BoundsError,
        program="""
        @po.op
        def bends(x: f64[N]):
            step, y = po.tensors("step y")
            step[i] = x[i + 1] - x[i + 2]
            y[k] = step[k] + x[k]  # <-
            return y

        bends(np.arange(5.0))
        """,
        caret="step[k]",
        says=(
            "reads step[3] at k = 3",
            "extent 3",
            "step[i] is defined for 0 <= i < 3 alone: at i = 3, x[i + 2] would lie outside, at x[5] (mistake.py:",
            "say what lies outside (x.pad(0), .clamp() or .wrap())",
        ),
        fixed="""
        @po.op
        def bends(x: f64[N]):
            step, y = po.tensors("step y")
            i = po.index("i", extent=N)
            step[i] = x.clamp()[i + 1] - x.clamp()[i + 2]
            y[k] = step[k] + x[k]
            return y

        assert bends(np.arange(5.0)).tolist() == [-1, 0, 1, 3, 4]
        """,
    ),
    Mistake(
        name="the_element_before_chosen_by_data",
        error=DefinitionError,
        program="""
        @po.op(dynamic=True)
        def steps(x: f64[N]):
            y = po.tensor("y")
            y[i] = po.where(x[i] > 0, x[i - 1], 0)  # <-
            return y

        steps(np.arange(5.0))
        """,
        caret="y[i]",
        says=("y[0]", "for 1 <= i < N alone", "x[i - 1] would lie outside, at x[-1]"),
        fixed="""
        @po.op(dynamic=True)
        def steps(x: f64[N]):
            y = po.tensor("y")
            y[i] = po.where(x[i] > 0, x.pad(0)[i - 1], 0)
            return y

        assert steps(np.arange(5.0)).tolist() == [0, 0, 1, 2, 3]
        """,
    ),
    Mistake(
        name="reading_past_the_end",
        error=BoundsError,
        program="""
        @po.op
        def forward(x: f32[N]):
            y = po.tensor("y")
            t = po.index("t", 0, N)
            y[t] = x[t + 1] - x[t]  # <-
            return y

        forward(np.ones(10, np.float32))
        """,
        caret="x[t + 1]",
        says=("x", "10", "t = 9"),
        fixed="""
        @po.op
        def forward(x: f32[N]):
            y = po.tensor("y")
            t = po.index("t", 0, N - 1)
            y[t] = x[t + 1] - x[t]
            return y

        x = rng.random(10, dtype=np.float32)
        assert np.allclose(forward(x), np.diff(x))
        """,
    ),
    Mistake(
        name="reading_before_the_start",
        error=BoundsError,
        program="""
        @po.op
        def backward(x: f32[N]):
            y = po.tensor("y")
            t = po.index("t", 0, N)
            y[t] = x[t] - x[t - 1]  # <-
            return y

        backward(np.ones(10, np.float32))
        """,
        caret="x[t - 1]",
        says=("x", "-1", "t = 0"),
        fixed="""
        @po.op
        def backward(x: f32[N]):
            y = po.tensor("y")
            t = po.index("t", 0, N)
            y[t] = x[t] - x.pad(0)[t - 1]
            return y

        x = rng.random(10, dtype=np.float32)
        assert np.allclose(backward(x), np.diff(x, prepend=0))
        """,
    ),
    Mistake(
        name="reading_a_constant_element_that_is_not_there",
        error=BoundsError,
        program="""
        @po.op
        def rebase(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] - x[N]  # <-
            return y

        rebase(np.ones(4, np.float32))
        """,
        caret="x[N]",
        says=("x", "4"),
        fixed="""
        @po.op
        def rebase(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i] - x[N - 1]
            return y

        x = rng.random(4, dtype=np.float32)
        assert np.allclose(rebase(x), x - x[-1])
        """,
    ),
    Mistake(
        name="reading_a_defined_tensor_outside_its_box",
        error=BoundsError,
        program="""
        @po.op
        def twice(x: f32[N]):
            s, y = po.tensors("s y")
            t = po.index("t", 0, N)
            s[i] = 2 * x[i]
            y[t] = s[t] + s[t + 1]  # <-
            return y

        twice(np.ones(6, np.float32))
        """,
        caret="s[t + 1]",
        says=("s", "t = 5"),
        fixed="""
        @po.op
        def twice(x: f32[N]):
            s, y = po.tensors("s y")
            s[i] = 2 * x[i]
            t = po.index("t", 0, N - 1)
            y[t] = s[t] + s[t + 1]
            return y

        x = rng.random(6, dtype=np.float32)
        assert np.allclose(twice(x), 2 * x[:-1] + 2 * x[1:])
        """,
    ),
    Mistake(
        name="a_triangular_read_that_leaves_the_matrix",
        error=BoundsError,
        program="""
        @po.op
        def above(a: f32[N, N]):
            y = po.tensor("y")
            r, c = po.index("r", 0, N), po.index("c", 0, N)
            y[r, c] = po.where(c >= r, a[r, c + 1], 0)  # <-
            return y

        above(np.ones((5, 5), np.float32))
        """,
        caret="a[r, c + 1]",
        says=("a", "c = 4"),
        fixed="""
        @po.op
        def above(a: f32[N, N]):
            y = po.tensor("y")
            r, c = po.index("r", 0, N), po.index("c", 0, N)
            y[r, c] = po.where((c >= r) & (c < N - 1), a[r, c + 1], 0)
            return y

        a = rng.random((5, 5), dtype=np.float32)
        assert np.allclose(above(a)[:, :-1], np.triu(np.ones((5, 4))) * a[:, 1:])
        """,
    ),
    Mistake(
        name="an_index_that_nothing_bounds",
        error=DefinitionError,
        program="""
        @po.op
        def repeat(x: f32[N]):
            y = po.tensor("y")
            y[j, i] = x[i]  # <-
            return y

        repeat(np.ones(3, np.float32))
        """,
        caret="y[j, i]",
        says=("'j'", "extent="),
        fixed="""
        @po.op
        def repeat(x: f32[N]):
            y = po.tensor("y")
            j = po.index("j", extent=4)
            y[j, i] = x[i]
            return y

        x = rng.random(3, dtype=np.float32)
        assert np.array_equal(repeat(x), np.tile(x, (4, 1)))
        """,
    ),
    Mistake(
        name="a_time_index_that_nothing_bounds",
        error=DefinitionError,
        program="""
        @po.op
        def double(x: f32[N]):
            u = po.tensor("u")
            t = po.index("t")
            u[0, i] = x[i]
            u[t + 1, i] = 2 * u[t, i]  # <-
            return u[3]

        double(np.ones(3, np.float32))
        """,
        caret="u[t + 1, i]",
        says=("'t'", "extent="),
        fixed="""
        @po.op
        def double(x: f32[N]):
            u = po.tensor("u")
            t = po.index("t", extent=3)
            u[0, i] = x[i]
            u[t + 1, i] = 2 * u[t, i]
            return u[3]

        x = rng.random(3, dtype=np.float32)
        assert np.allclose(double(x), 8 * x)
        """,
    ),
    Mistake(
        name="a_subscript_that_multiplies_two_axes",
        error=DefinitionError,
        program="""
        @po.op
        def stretch(x: f32[N]):
            y = po.tensor("y")
            r = po.index("r", extent=3)
            y[i, r] = x[i * r]  # <-
            return y

        stretch(np.ones(7, np.float32))
        """,
        caret="i * r",
        says=("'i * r'", "constant"),
        fixed="""
        @po.op
        def stretch(x: f32[N]):
            y = po.tensor("y")
            i, r = po.index("i", extent=3), po.index("r", extent=3)
            y[i, r] = x[2 * i + r]
            return y

        x = rng.random(7, dtype=np.float32)
        assert np.array_equal(stretch(x)[2], x[4:7])
        """,
    ),
    Mistake(
        name="a_subscript_that_is_a_fraction",
        error=DefinitionError,
        program="""
        @po.op
        def half(x: f32[N]):
            y = po.tensor("y")
            y[i] = x[i / 2]  # <-
            return y

        half(np.ones(8, np.float32))
        """,
        caret="i / 2",
        says=("//",),
        fixed="""
        @po.op
        def half(x: f32[N]):
            y = po.tensor("y")
            i = po.index("i", extent=2 * N)
            y[i] = x[i // 2]
            return y

        x = rng.random(8, dtype=np.float32)
        assert np.array_equal(half(x), np.repeat(x, 2))
        """,
    ),
    Mistake(
        name="a_subscript_that_is_a_float",
        error=DTypeError,
        program="""
        @po.op
        def lookup(table: f32[N], at: f32[M]):
            y = po.tensor("y")
            y[i] = table[at[i]]  # <-
            return y

        lookup(np.ones(8, np.float32), np.zeros(3, np.float32))
        """,
        caret="at[i]",
        says=("f32", "integer"),
        fixed="""
        @po.op
        def lookup(table: f32[N], at: f32[M]):
            y = po.tensor("y")
            y[i] = table[po.cast(at[i], i64)]
            return y

        table = rng.random(8, dtype=np.float32)
        assert np.array_equal(lookup(table, np.array([7, 0, 3], np.float32)), table[[7, 0, 3]])
        """,
    ),
    Mistake(
        name="too_many_subscripts",
        error=DefinitionError,
        program="""
        @po.op
        def trace(a: f32[M, N]):
            s = po.tensor("s")
            s[()] += a[i, i, i]  # <-
            return s

        trace(np.ones((3, 3), np.float32))
        """,
        caret="a[i, i, i]",
        says=("'a'", "2", "3"),
        fixed="""
        @po.op
        def trace(a: f32[N, N]):
            s = po.tensor("s")
            s[()] += a[i, i]
            return s

        a = rng.random((3, 3), dtype=np.float32)
        assert np.allclose(trace(a), np.trace(a))
        """,
    ),
    Mistake(
        name="definitions_of_one_tensor_with_different_ranks",
        error=DefinitionError,
        program="""
        @po.op
        def start(x: f32[N]):
            u = po.tensor("u")
            t = po.index("t", extent=2)
            u[i] = x[i]
            u[t + 1, i] = u[t, i]  # <-
            return u

        start(np.ones(4, np.float32))
        """,
        caret="u[t, i]",
        says=("'u'",),
        fixed="""
        @po.op
        def start(x: f32[N]):
            u = po.tensor("u")
            t = po.index("t", extent=2)
            u[0, i] = x[i]
            u[t + 1, i] = u[t, i]
            return u

        x = rng.random(4, dtype=np.float32)
        assert np.array_equal(start(x), np.tile(x, (3, 1)))
        """,
    ),
    Mistake(
        name="one_subscript_behind_the_other",
        error=DefinitionError,
        program="""
        @po.op
        def double(a: f32[M, N]):
            y = po.tensor("y")
            y[i, j] = 2 * a[i][j]  # <-
            return y

        double(np.ones((3, 4), np.float32))
        """,
        caret="a[i]",
        says=("'a'", "'i'", "every dimension"),
        fixed="""
        @po.op
        def double(a: f32[M, N]):
            y = po.tensor("y")
            y[i, j] = 2 * a[i, j]
            return y

        a = rng.random((3, 4), dtype=np.float32)
        assert np.array_equal(double(a), 2 * a)
        """,
    ),
    Mistake(
        name="a_slice_between_indices",
        error=DefinitionError,
        program="""
        @po.op
        def pairs(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.sum(x[i : i + 2])  # <-
            return y

        pairs(np.ones(5, np.float32))
        """,
        caret="x[i : i + 2]",
        says=("slice", "'i'"),
        fixed="""
        @po.op
        def pairs(x: f32[N]):
            y = po.tensor("y")
            r = po.index("r", extent=2)
            y[i] = po.sum(x[i + r], r)
            return y

        x = rng.random(5, dtype=np.float32)
        assert np.allclose(pairs(x), x[:-1] + x[1:])
        """,
    ),
    Mistake(
        name="an_index_beside_a_slice",
        error=DefinitionError,
        program="""
        @po.op
        def rows(a: f32[M, N]):
            y = po.tensor("y")
            y[i] = po.sum(a[i, :])  # <-
            return y

        rows(np.ones((2, 3), np.float32))
        """,
        caret="a[i, :]",
        says=("slice", "'i'"),
        fixed="""
        @po.op
        def rows(a: f32[M, N]):
            y = po.tensor("y")
            y[i] = po.sum(a[i, j], j)
            return y

        a = rng.random((2, 3), dtype=np.float32)
        assert np.allclose(rows(a), a.sum(axis=1))
        """,
    ),
    Mistake(
        name="dividing_a_subscript_by_zero",
        error=DefinitionError,
        program="""
        @po.op
        def blocks(x: f32[N]):
            y = po.tensor("y")
            i = po.index("i", extent=N)
            y[i] = x[i // 0]  # <-
            return y

        blocks(np.ones(4, np.float32))
        """,
        caret="i // 0",
        says=("0",),
        fixed="""
        @po.op
        def blocks(x: f32[N]):
            y = po.tensor("y")
            i = po.index("i", extent=N)
            y[i] = x[i // 2]
            return y

        x = rng.random(4, dtype=np.float32)
        assert np.array_equal(blocks(x), x[[0, 0, 1, 1]])
        """,
    ),
    Mistake(
        name="a_gathered_index_that_is_too_large",
        error=BoundsError,
        program="""
        @po.op
        def embed(table: f32[M, N], ids: i64[K]):
            y = po.tensor("y")
            y[i, j] = table[ids[i], j]  # <-
            return y

        embed(np.ones((10, 4), np.float32), np.array([3, 10, 2]))
        """,
        caret="table[ids[i], j]",
        says=("table", "10"),
        fixed="""
        @po.op
        def embed(table: f32[M, N], ids: i64[K]):
            y = po.tensor("y")
            y[i, j] = table[po.minimum(ids[i], M - 1), j]
            return y

        table = rng.random((10, 4), dtype=np.float32)
        assert np.array_equal(embed(table, np.array([3, 10, 2])), table[[3, 9, 2]])
        """,
    ),
    Mistake(
        name="a_gathered_index_that_is_negative",
        error=BoundsError,
        program="""
        @po.op
        def pick(x: f32[N], ids: i64[K]):
            y = po.tensor("y")
            y[i] = x[ids[i]]  # <-
            return y

        pick(np.ones(5, np.float32), np.array([0, -1]))
        """,
        caret="x[ids[i]]",
        says=("x", "-1"),
        fixed="""
        @po.op
        def pick(x: f32[N], ids: i64[K]):
            y = po.tensor("y")
            y[i] = x[ids[i] % N]
            return y

        x = rng.random(5, dtype=np.float32)
        assert np.array_equal(pick(x, np.array([0, -1])), x[[0, -1]])
        """,
    ),
    Mistake(
        name="a_scattered_index_outside_the_result",
        error=BoundsError,
        program="""
        @po.op
        def histogram(bins: i64[N]):
            h = po.tensor("h", shape=(4,), dtype=i64)
            h[bins[i]] += 1  # <-
            return h

        histogram(np.array([0, 3, 4]))
        """,
        caret="h[bins[i]]",
        says=("h", "4"),
        fixed="""
        @po.op
        def histogram(bins: i64[N]):
            h = po.tensor("h", shape=(5,), dtype=i64)
            h[bins[i]] += 1
            return h

        assert histogram(np.array([0, 3, 4])).tolist() == [1, 0, 0, 1, 1]
        """,
    ),
    Mistake(
        name="a_scatter_into_a_tensor_without_a_shape",
        error=DefinitionError,
        program="""
        @po.op
        def histogram(bins: i64[N]):
            h = po.tensor("h")
            h[bins[i]] += 1  # <-
            return h

        histogram(np.array([0, 3, 4]))
        """,
        caret="h[bins[i]]",
        says=("'h'", "shape="),
        fixed="""
        @po.op
        def histogram(bins: i64[N]):
            h = po.tensor("h", shape=(5,))
            h[bins[i]] += 1
            return h

        assert histogram(np.array([0, 3, 4])).tolist() == [1, 0, 0, 1, 1]
        """,
    ),
    Mistake(
        name="a_plain_definition_at_a_data_subscript",
        error=DefinitionError,
        program="""
        @po.op
        def place(at: i64[N], x: f32[N]):
            y = po.tensor("y", shape=(10,))
            y[at[i]] = x[i]  # <-
            return y

        place(np.array([0, 3]), np.ones(2, np.float32))
        """,
        caret="y[at[i]]",
        says=("'y'", "+="),
        fixed="""
        @po.op
        def place(at: i64[N], x: f32[N]):
            y = po.tensor("y", shape=(10,))
            y[at[i]] += x[i]
            return y

        assert place(np.array([0, 3]), np.ones(2, np.float32)).tolist() == [1, 0, 0, 1, 0, 0, 0, 0, 0, 0]
        """,
    ),
    Mistake(
        name="storing_outside_a_shape_that_was_given",
        error=BoundsError,
        program="""
        @po.op
        def shift(x: f32[N]):
            y = po.tensor("y", shape=(N,))
            y[0] = 0
            y[i + 1] = x[i]  # <-
            return y

        shift(np.ones(4, np.float32))
        """,
        caret="y[i + 1]",
        says=("y", "4", "i = 3"),
        fixed="""
        @po.op
        def shift(x: f32[N]):
            y = po.tensor("y", shape=(N + 1,))
            y[0] = 0
            y[i + 1] = x[i]
            return y

        x = rng.random(4, dtype=np.float32)
        assert np.array_equal(shift(x)[1:], x)
        """,
    ),
    Mistake(
        name="an_index_expression_of_more_than_64_bits",
        error=DefinitionError,
        program="""
        @po.op
        def high(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(i * 2**62 > 5, x[i], 0)  # <-
            return y

        high(np.ones(8, np.float32))
        """,
        caret="y[i]",
        says=("i", "2**62", "po.cast"),
        fixed="""
        @po.op
        def high(x: f32[N]):
            y = po.tensor("y")
            y[i] = po.where(po.cast(i, po.i64) * 2**61 > 5, x[i], 0)
            return y

        assert high(np.ones(3, np.float32)).tolist() == [0, 1, 1]
        """,
    ),
)
