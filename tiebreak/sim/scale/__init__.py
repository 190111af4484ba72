"""What training, auditing and disputes cost at any size: formulas and fits to this repository's own measurements."""
