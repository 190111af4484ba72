"""The corpus: programs whose run roots are known, computed by a machine and stated under its owner's key."""
