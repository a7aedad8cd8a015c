"""Service levels and the alerts derived from them."""
