"""Encoders: from a prompt to a vector."""
