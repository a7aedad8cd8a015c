"""Files that callers store, and batches of requests answered from a queue."""
