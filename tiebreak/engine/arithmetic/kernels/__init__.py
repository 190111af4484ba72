"""Triton kernels of everything but sums and elementwise chains. Only what launches them imports their modules."""
