"""Commands that measure a gateway and its parts."""
