"""Kernels of mixtures of experts: routing, grouped products, weighted sums."""
