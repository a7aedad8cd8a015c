"""The figures of the overview, kept in memory."""
