"""Incentives: the payoffs of a job's parties under the contract's rules, in exact wei."""
