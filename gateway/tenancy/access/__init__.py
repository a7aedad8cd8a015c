"""What decides who may call."""
