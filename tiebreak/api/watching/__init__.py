"""What a worker measures of itself, and where that is shown."""
