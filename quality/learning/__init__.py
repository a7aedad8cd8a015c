"""Use stored labels at once: for routing, and for summaries in words."""
