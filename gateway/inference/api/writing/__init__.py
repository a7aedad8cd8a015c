"""From an answer to bytes, whole or streamed."""
