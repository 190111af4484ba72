"""Scores models on examples, as runs that learn nothing and that anyone can check."""
