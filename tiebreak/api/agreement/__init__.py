"""Jobs that two machines sign, and who may read the sealed ones."""
