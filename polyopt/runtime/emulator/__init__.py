"""Runs the text of CUDA kernels on the CPU, checking every access: for machines without a GPU."""
