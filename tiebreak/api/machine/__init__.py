"""The machine that computes: what it is, whether it computes what the specification says, and its settings."""
