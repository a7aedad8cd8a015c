"""Labels: where they come from, and how they get back into serving."""
