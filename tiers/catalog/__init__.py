"""The operator's catalogue: tiers, models, prices, GPU groups; loading and checks."""
