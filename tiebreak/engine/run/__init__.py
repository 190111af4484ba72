"""A run: its directory, the step loop, training, auditing, commitments and evidence."""
