"""What routing would have done with past requests."""
