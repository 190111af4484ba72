"""The rules that both parties and the referee apply, byte for byte. Imports neither torch nor the chain's node."""
