"""Training rows."""
