"""Plans that every back-end shares: views of operands, bounds and their proof, tables, code of chains, counts."""
