"""Attention backends behind one seam: `reference` (plain torch, the oracle), `cpu` (native) and `triton` (CUDA)."""
