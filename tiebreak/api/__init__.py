"""The library interface, in the words of a PyTorch user. Its names are those of `tiebreak` itself."""
