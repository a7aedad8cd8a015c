"""Rates, costs and reliability with their intervals."""
