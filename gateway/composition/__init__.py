"""Background work of a gateway process and the state that operators see: quality loop, catalogue reload, privacy."""
