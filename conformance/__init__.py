"""The integer reference and the test vectors, as a package of their own: see README.md in this folder."""
