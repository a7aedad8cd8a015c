"""Users of the dashboard: sign-in, sessions, roles."""
