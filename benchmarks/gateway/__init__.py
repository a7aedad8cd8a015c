"""Benchmarks of the gateway: what its parts cost, on real processes."""
