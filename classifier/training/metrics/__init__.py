"""Evaluate predictions."""
