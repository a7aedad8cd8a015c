"""Judge an answer by its own evidence before it is sent."""
