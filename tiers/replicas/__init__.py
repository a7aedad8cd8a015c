"""Several servers for one tier: choosing, retrying, hedging, breaking the circuit."""
