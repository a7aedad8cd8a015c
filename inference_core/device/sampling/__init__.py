"""Sampling on a device: logit edits, draws and log-probabilities."""
