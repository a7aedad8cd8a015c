"""The catalogues that ship with AIO, as TOML files: `laptop` and `datacenter`."""
