"""Tiers behind HTTP: OpenAI-compatible servers and Triton."""
