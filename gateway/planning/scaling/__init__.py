"""Policies that scale a fleet."""
