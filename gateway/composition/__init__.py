"""Background work of a gateway process and the state shown to operators: quality loop, catalogue reload, privacy."""
