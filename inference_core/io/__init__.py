"""Files and memory pages."""
