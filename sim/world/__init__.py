"""Simulated time: a chain with blocks and a mempool, mail, the parties, and one game from the first offer to the last wei."""
