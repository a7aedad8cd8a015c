"""HTTP and operations: API, authentication, telemetry, command line; the composition root."""

__version__ = "0.1.0"
