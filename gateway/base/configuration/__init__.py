"""How a process gets its `Settings`: from the environment, from options, and from the catalogue that is there."""
