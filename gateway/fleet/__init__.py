"""How many replicas a load needs, now and soon: planning, forecasting, predictive scaling, and a simulator of all
three."""
