"""Tiers that a core of ours computes."""
