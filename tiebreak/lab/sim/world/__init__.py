"""Simulated time: blocks, mempool, mail, the parties, and one game from the first offer to the last wei."""
