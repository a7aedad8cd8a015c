"""Files of callers and batches of requests."""
