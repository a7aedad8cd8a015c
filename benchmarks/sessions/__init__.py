"""Sessions of agents, simulated and recorded: what the rules of `classifier.policy.sessions` cost and gain."""
