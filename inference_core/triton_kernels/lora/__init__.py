"""Kernels of low-rank adapters."""
