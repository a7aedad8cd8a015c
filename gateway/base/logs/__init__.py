"""The format of log lines, and the request that a line belongs to."""
