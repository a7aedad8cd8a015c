"""How a step is computed."""
