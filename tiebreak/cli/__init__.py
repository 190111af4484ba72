"""The command line: one module for each command, which declares it and prints; `tiebreak.api` does the work."""
