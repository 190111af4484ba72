"""Says what a certificate says in formats of other tools, each in a module, all in the table of `formats`."""
