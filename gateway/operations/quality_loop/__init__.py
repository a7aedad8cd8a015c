"""The learning loop of a serving process."""
