"""Features: from a prompt to named numbers."""
