"""Trains a LoRA adapter for a fast tier on answers of a stronger one; keeps it only if it is better (SPEC TI-10)."""
