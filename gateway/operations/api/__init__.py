"""The admin API: handlers of the use cases."""
