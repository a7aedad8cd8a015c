"""Commands about models, memory, cost and capacity."""
