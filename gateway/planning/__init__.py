"""Simulated fleets, backtests, capacity: nothing that serves imports it."""
