"""Endpoints for operators: live knobs, keys, budgets, costs, statistics."""
