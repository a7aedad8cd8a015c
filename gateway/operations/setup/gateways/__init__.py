"""Configurations of other gateways, for `aio init --from`."""
