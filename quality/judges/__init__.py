"""Judges of one question: is this answer no worse than the strongest tier's?"""
