"""Several servers for one tier: load balancing, retries, hedging, circuit breaking."""
