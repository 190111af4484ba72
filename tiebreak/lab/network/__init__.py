"""A chain, a hub and the parties as processes of this machine, for `tiebreak up`."""
