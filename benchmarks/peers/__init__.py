"""Other engines and other gateways of today, and ours, under the same loads in turns."""
