"""Statistical tests and scores."""
