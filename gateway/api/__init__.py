"""The HTTP endpoints: OpenAI's, and ours for routing, records, health and metrics."""
