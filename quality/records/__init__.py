"""What is kept of a request, as data: records, rows, and what is taken out of texts before they are stored."""
