"""Benchmarks and studies of AIO; no part of what is shipped: `python -m benchmarks`."""
