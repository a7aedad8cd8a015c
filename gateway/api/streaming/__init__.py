"""Answers on their way to the caller: whole, as server-sent events or over a WebSocket."""
