"""Telemetry: Prometheus metrics, OpenTelemetry spans and logs; never a prompt or an answer."""
