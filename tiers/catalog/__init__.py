"""What an operator writes: tiers, models, prices, GPU groups; loading and checks."""
