"""Benchmarks of a core by itself: models, scheduling, decoding features."""
