"""A changed catalogue or setting, without a restart."""
