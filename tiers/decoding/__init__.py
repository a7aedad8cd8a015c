"""Requests to token ids, and outputs of the core to deltas."""
