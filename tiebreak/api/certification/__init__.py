"""Makes and checks certificates of weights and claims of ownership, and converts them to other formats."""
