"""One fitted part each."""
