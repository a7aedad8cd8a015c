"""From files and a spec to a core."""
