"""Commands that simulate fleets."""
