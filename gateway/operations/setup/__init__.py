"""The first start: what the machine and its environment offer."""
