"""Cores on a Ray cluster: placed, discovered, balanced, scaled and replaced. Loaded only on demand."""
