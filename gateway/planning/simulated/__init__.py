"""Fleets of replicas in simulated time, to compare scaling rules."""
