"""Administration: use cases, and their faces: API, dashboard and command line."""
