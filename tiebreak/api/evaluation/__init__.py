"""Evaluations: runs that learn nothing, whose results are the scores of a model."""
