"""The pages of a hub: what happens between the parties, for people who watch."""
