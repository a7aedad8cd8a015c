"""From requests to token ids, and from the core's outputs to deltas."""
