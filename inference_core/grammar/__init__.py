"""Constrained decoding (SPEC SO-01): grammars compiled once, a state per sequence, a mask of tokens per draw.

Grammars run in processes of their own: `server` starts a `worker` for each, which uses `compiler`, `matcher`, `trie`
and the grammar library. The serving process has `workers`, the end of each in `remote`, and never loads the library.
"""
