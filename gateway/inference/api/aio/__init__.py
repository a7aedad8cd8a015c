"""Our own endpoints: feedback, records, dry runs of routing."""
