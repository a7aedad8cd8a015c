"""Tiers computed by a core of our own."""
