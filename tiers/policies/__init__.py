"""Decoding policies: ways to make an answer from one model's token streams."""
