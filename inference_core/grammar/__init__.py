"""Constrained decoding (SPEC SO-01): grammars compiled once, a state per sequence, a mask of tokens per draw."""
