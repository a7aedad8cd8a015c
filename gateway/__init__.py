"""Everything HTTP and operational: API, auth, telemetry, command line; the composition root."""
