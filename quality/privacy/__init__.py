"""Erasing a user, and how long things are kept."""
