"""The admin API of the learning loop."""
