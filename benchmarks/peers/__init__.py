"""One module per peer. Each offers `prepare(case, arrays) -> Callable[[], list[arrays]] | None`, None where it has
nothing for the operator, and `VERSION`; `benchmarks.child` imports exactly one of them, so that every process has one
threading runtime.
"""

PEERS = ("polyopt", "numpy", "torch", "compiled", "jax", "numba", "gcc")
