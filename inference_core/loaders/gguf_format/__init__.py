"""Reads GGUF files."""
