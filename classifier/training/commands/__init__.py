"""The commands of `aio classifier`."""
