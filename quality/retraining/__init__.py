"""Train on stored labels: schedule, process, and result."""
