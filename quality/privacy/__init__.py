"""Erase a user's data, and limit how long data are kept."""
