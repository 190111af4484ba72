"""Triton kernels, on GPUs. Nothing here imports Triton before a kernel is asked for."""
