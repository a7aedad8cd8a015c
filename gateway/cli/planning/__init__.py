"""Commands that plan, measure and convert models."""
