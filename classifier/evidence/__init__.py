"""Judging an answer by itself, before it is sent."""
