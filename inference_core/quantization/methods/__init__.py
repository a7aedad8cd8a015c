"""The quantisation methods and what they share."""
