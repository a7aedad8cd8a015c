"""Complexity of a prompt from its text alone: P(SIMPLE), P(MEDIUM), P(COMPLEX), P(EXPERT) (SPEC RT-01, RT-03)."""
