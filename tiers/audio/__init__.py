"""How long audio lasts, from its containers and packets."""
