"""Series of simulated games: how they are chosen, played, recorded and summarized. One line of text fixes each."""
