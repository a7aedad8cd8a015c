"""Constrained decoding (SPEC SO-01): grammars compiled once, a state per sequence, a token mask per draw.

Each grammar runs in its own process: `server` starts a `worker` for it, which uses `compiler`, `matcher`, `trie` and
the grammar library. The serving process has `workers`, with their client side in `remote`, and never loads the library.
"""
