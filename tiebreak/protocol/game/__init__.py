"""The dispute game: moves, rules, the two sides, proof and referee, signed messages."""
