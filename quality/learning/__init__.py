"""What stored labels say: to routing at once, to people in words."""
