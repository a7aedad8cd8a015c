"""Decoding policies: ways to turn one model's token streams into an answer."""
