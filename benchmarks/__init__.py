"""Benchmarks. `make bench-NAME` prints a table and writes benchmarks/results/NAME.json. No test asserts a time."""
