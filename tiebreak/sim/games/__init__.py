"""Many games, each from one line: which are played, how, what came of them, and what all of them together say."""
