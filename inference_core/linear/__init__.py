"""Linear layers with one interface: how a weight matrix is packed and applied."""
