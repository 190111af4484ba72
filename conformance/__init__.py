"""The integer reference and the test vectors, as a package of their own: see README.md in this folder."""

PROGRAMS = ("mlp", "mixed")
"""The runs that are in the package: small enough for integers."""
