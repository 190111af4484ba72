"""The built-in tasks, `digits` and `text`, and the reading of task files."""
