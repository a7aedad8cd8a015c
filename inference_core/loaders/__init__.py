"""Readers of weight files (GGUF, Hugging Face safetensors) and the on-disk cache of repacked weights."""
