"""Users of the dashboard."""
