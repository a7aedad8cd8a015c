"""Who may call what: keys, sessions, host names and cross-site requests."""
