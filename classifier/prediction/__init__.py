"""Predictions by complexity class: for one prompt, for many, with an explanation."""
