"""Attention backends with one interface: `reference` (plain torch, the oracle), `cpu` (native) and `triton` (CUDA)."""
