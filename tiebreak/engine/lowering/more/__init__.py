"""Rules of rare operators."""
