"""The routing policy: pure functions from probabilities and costs to a decision."""
