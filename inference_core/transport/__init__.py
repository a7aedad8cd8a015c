"""Between a core and its clients: over a thread, a Unix socket or TCP."""
