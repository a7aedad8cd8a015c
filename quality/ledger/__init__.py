"""Store records in the database through a journal on disk, off the request path."""
