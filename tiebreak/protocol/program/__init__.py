"""A training step as data: its instructions, their encoding and validation, and their meaning in integers."""
