"""From IR text to code that runs."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from polyopt.runtime import jit
from polyopt.target import host

UPPER_HALF_FIRST = """
define void @joined(ptr %words) {
  %array = alloca [8 x i32], align 32
  %low = getelementptr i32, ptr %words, i64 8
  %upper = getelementptr i8, ptr %array, i64 16
  %one = load <4 x i32>, ptr %words, align 4
  store <4 x i32> %one, ptr %upper, align 4
  %other = load <4 x i32>, ptr %low, align 4
  store <4 x i32> %other, ptr %array, align 4
  %all = load <8 x i32>, ptr %array, align 4
  store <8 x i32> %all, ptr %words, align 4
  ret void
}
"""


@pytest.mark.parametrize("opt", [0, 1, 2, 3])
def test_vectors_that_fill_an_array_from_its_end(opt: int) -> None:
    """LLVM's SROA used the second vector before it was loaded, and its code generator aborted the process."""
    code = jit.load_object(jit.compile_object(UPPER_HALF_FIRST, host(), opt=opt), ["joined"])
    words = np.arange(16, dtype=np.int32)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(code.addresses["joined"])(words.ctypes.data)
    np.testing.assert_array_equal(words, [8, 9, 10, 11, 0, 1, 2, 3, 8, 9, 10, 11, 12, 13, 14, 15])
