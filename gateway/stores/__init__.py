"""Redis and the database as seen from requests: reached, away, back."""
