"""An answer's opening: as much of it as stage 3 looks at before a stream's first byte; free of numpy, for settings."""

FIRST_TOKENS = 8
"""Tokens of an opening, at most: what a stream is held for by default (DESIGN §4)."""
