"""Google's Gemini API over the same tiers."""
