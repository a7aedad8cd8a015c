"""The mission's path: from a request to the answer that is worth most."""
