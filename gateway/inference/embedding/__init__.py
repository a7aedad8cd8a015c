"""Embeddings: the catalogue's models that turn texts into vectors, and what computes them."""
