"""Which sequences a step computes."""
