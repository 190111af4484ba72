"""Makes a run, on disk or in memory, from a model, a loss and data."""
