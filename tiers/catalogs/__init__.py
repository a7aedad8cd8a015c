"""The catalogues that ship with AIO, as TOML files; `shipped_catalogs` lists them."""
