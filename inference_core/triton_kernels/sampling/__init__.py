"""Kernels that edit logits and sample tokens."""
