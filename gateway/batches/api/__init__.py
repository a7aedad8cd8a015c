"""The endpoints of batches and files."""
