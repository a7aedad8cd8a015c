"""Measurements on recorded answers, outside of what is shipped: `python -m benchmarks`."""
