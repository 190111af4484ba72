"""What both parties and the referee must agree on, byte for byte. Imports neither torch nor the chain's node."""
