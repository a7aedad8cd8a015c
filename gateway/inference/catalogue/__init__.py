"""What is served: tiers, names, aliases, prices."""
