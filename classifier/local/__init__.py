"""Estimates from a catalogue's own labels: count cells by class and key, and a head for each key."""
