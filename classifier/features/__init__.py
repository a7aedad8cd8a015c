"""From a prompt to named numbers."""
