"""Checks of a run by somebody other than its trainer: replays of all of it or of parts, and looks at its losses."""
