"""Redis and the database as seen from requests: access, failures, retries."""
