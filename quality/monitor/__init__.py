"""The loop that verifies answers, and the sequential tests that say when something has changed."""
