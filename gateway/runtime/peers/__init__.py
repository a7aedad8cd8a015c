"""The other gateway processes behind the same port."""
