"""Everyone who does not do as agreed: one small class each, with what it gains and where it ends."""
