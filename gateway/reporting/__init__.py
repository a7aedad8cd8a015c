"""What is claimed, measured and proven, in one place: the report and the checklist."""
