"""Batches and files: jobs that wait for idle time."""
