"""Where a session of an agent runs: plain data and pure functions, which the gateway calls."""
