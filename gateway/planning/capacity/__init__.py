"""How many replicas a load needs."""
