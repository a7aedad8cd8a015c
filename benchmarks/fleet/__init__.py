"""Fleets in simulated time: scaling rules compared on recorded traces, pools apart, and the loads of the sources."""
