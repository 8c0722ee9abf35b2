"""Random operators, held against the reference without tolerance: what `polyopt fuzz` runs."""
