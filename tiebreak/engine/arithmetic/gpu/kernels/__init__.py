"""Triton kernels, the twins of the C kernels. Only what launches them imports their modules."""
