"""Budgets: what is held, leased and charged."""
