"""Judges: is an answer no worse than the strongest tier's?"""
