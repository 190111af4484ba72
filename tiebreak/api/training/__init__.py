"""From a model, a loss and data to a run, on disk or in memory."""
