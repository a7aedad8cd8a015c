"""Sessions of agents: which client asks, and which of its sessions a request goes on with."""
