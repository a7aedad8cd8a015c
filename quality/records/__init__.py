"""What is stored of a request: records, rows, and redaction of texts before they are stored."""
