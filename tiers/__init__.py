"""Tiers: a model, a decoding policy, a price and an objective; local or remote."""
