"""A gateway under mixed traffic for a long time: its memory, files and latency, minute by minute."""
