"""Rows that training reads."""
