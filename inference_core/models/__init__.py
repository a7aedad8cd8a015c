"""Decoder architectures on the paged core."""
