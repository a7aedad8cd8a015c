"""Tiers and quantised models measured on tasks with known answers."""
