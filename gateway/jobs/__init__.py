"""Files that callers keep here, and batches of requests answered from a queue."""
