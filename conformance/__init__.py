"""The integer reference and the test vectors, as a package of their own: see README.md in this folder."""

PROGRAMS = ("every", "fourier", "lora", "mixed", "mlp", "narrow", "signatures")
"""The programs of the corpus that are in the package: small enough for integers, and without rounding logs."""
