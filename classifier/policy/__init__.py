"""From probabilities and costs to a decision: pure functions."""
