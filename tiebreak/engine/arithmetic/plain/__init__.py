"""Torch alone, on any device: it computes every instruction, and settles what other back-ends leave open."""
