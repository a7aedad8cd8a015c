"""From a prompt to a vector."""
