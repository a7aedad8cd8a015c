"""What travels between ranks: tensors, commands and reports, and waiting for them."""
