"""The command line. Each command has one module, which declares it and prints; `tiebreak.api` does the work."""
