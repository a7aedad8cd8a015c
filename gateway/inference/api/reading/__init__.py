"""From a body and its headers to a checked request."""
