"""Changed numbers: single values and rounding logs that a cheat puts in place of honest ones, and evidence to match."""
