"""Recorded sessions of agents: what the rules of `classifier.policy.sessions` cost and gain."""
