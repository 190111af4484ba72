"""Importing datasets, and the ids of arrays."""
