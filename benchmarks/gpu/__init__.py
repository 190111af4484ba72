"""Measures what a GPU computes and how fast, in parts: see `benchmarks.gpu.__main__` and docs/speed.md."""
