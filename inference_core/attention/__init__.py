"""Attention backends behind one seam: `reference` (plain torch, the oracle) and `cpu` (native)."""
