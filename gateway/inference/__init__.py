"""The mission's path: from a request to the cheapest answer that is good enough."""
