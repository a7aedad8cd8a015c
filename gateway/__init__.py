"""Everything HTTP and operational: API, auth, telemetry, command line; the composition root."""

__version__ = "0.1.0"
