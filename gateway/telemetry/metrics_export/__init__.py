"""Prometheus metrics: families and collectors."""
