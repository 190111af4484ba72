"""Kernels in C, on CPUs."""
