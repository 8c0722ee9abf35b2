"""The 30 kernels of PolyBench 4.2 as equations, each with its loops as the oracle.

PolyBench/C 4.2.1, L.-N. Pouchet and T. Yuki, https://sourceforge.net/projects/polybench. The modules are its
categories. What PolyBench updates in place is a new value here: a step dimension, or another tensor.
"""

from __future__ import annotations

from tests.polybench import blas, datamining, linear_algebra, medley, solvers, stencils

KERNELS = (
    *blas.KERNELS,
    *linear_algebra.KERNELS,
    *solvers.KERNELS,
    *datamining.KERNELS,
    *medley.KERNELS,
    *stencils.KERNELS,
)
