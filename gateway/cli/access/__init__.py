"""Commands for keys, teams and users of the dashboard."""
