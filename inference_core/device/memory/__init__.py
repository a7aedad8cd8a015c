"""Device memory: profiling, and KV blocks copied to and from the host."""
