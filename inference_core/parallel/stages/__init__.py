"""What computes one pipeline stage on a rank."""
