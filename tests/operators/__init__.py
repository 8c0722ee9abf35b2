"""Everyday operators as equations, each with what NumPy computes.

One module per family; `catalogue.OPERATORS` joins them.
"""
