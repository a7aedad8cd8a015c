"""Writes quantised checkpoints as Hugging Face folders."""
