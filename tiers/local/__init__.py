"""Tiers whose model a core of ours computes: from requests to token ids, from the core's outputs to deltas, and ways to
make an answer from one model's token streams."""
