"""Rates per minute, and the queue of an overloaded gateway."""
