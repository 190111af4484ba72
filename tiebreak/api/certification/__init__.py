"""Makes and checks certificates of weights and claims of ownership."""
