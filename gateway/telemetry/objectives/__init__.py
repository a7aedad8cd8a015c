"""Service levels and the alerts that follow from them."""
