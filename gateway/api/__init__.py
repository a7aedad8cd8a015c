"""The HTTP endpoints: OpenAI's, and AIO's for routing, records, health and metrics."""
