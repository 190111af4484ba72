"""Jobs on a chain: contracts, what people read and do by hand, and the weights that come out of a settled job."""
