"""Constrained decoding (SPEC SO-01): grammars compiled once, a state per sequence, a token mask per draw.

Each grammar runs in its own process: `child` forks one for it, which uses `compiler`, `matcher` and the grammar
library. The serving process has `workers`, with their client side in `remote`, and never loads the library.
"""
