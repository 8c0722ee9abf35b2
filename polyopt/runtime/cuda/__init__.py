"""Kernels for NVIDIA GPUs: compiling their text, and running it on a device or on the emulator."""
