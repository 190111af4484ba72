"""Checks of a run by others than its trainer: replays of the whole run or of segments, and tests of its losses."""
