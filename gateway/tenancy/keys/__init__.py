"""Keys: stored, found and changed."""
