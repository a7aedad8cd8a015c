"""Recorded runs of agents: which models serve them, from few labelled tasks."""
