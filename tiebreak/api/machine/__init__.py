"""The machine that computes: its description, its qualification by the specification, and its settings."""
