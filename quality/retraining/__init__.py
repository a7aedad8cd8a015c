"""Training on stored labels: when it runs, where, and what it gives."""
