"""How many replicas a load needs, now and soon: planning, forecasting, scaling ahead, and a simulator of all three."""
