"""A training step as data: instructions, their codec and checks, and what each means in integers."""
