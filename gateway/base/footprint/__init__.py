"""What is not imported, and what memory is given back, so that processes stay small and start fast."""
