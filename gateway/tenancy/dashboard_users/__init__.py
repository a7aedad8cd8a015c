"""Users of the dashboard: names, roles, password hashes and sessions."""
