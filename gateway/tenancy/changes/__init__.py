"""Audited changes: orders and their errors."""
