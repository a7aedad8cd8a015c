"""The whole gateway in front of recorded answers: what routing costs, how good it is, and what the loop changes."""
