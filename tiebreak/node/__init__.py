"""The parties over real time: they follow a chain and a hub, keep a journal, compute, and show what goes on."""
