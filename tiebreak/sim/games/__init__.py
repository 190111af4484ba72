"""Series of simulated games: how games are chosen, played, recorded and summarized.

One line of text fixes each game.
"""
