"""Two versions, tiers or settings on the same prompts."""
