"""Every operator of the folder."""

from __future__ import annotations

from tests.operators import (
    attention,
    contraction,
    convolution,
    indexing,
    normalisation,
    recurrence,
    simulation,
    solvers,
    training,
)

OPERATORS = (
    *contraction.OPERATORS,
    *convolution.OPERATORS,
    *normalisation.OPERATORS,
    *attention.OPERATORS,
    *indexing.OPERATORS,
    *recurrence.OPERATORS,
    *training.OPERATORS,
    *simulation.OPERATORS,
    *solvers.OPERATORS,
)
