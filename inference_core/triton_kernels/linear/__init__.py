"""Kernels of 4-bit and 8-bit linear layers."""
