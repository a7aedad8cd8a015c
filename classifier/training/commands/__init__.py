"""What `aio classifier` runs."""
