"""Answers kept for a while, and generations that several callers share."""
