"""Blocks of keys and values: pools, prefix hashes, the copy in host memory, the memory plan."""
