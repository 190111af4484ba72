"""Keys: how they are made, kept and reached."""
