"""The inference cores behind a gateway: started, read, tuned."""
