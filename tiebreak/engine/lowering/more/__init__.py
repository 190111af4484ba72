"""Rules of rare operators. Nothing outside of this folder needs one of them."""
