"""Speculative decoding: tokens guessed cheaply and verified together in one step of the model (SPEC SD rows)."""
