"""Who gains by what: payoffs of a job's parties under the contract's rules, in exact wei."""
