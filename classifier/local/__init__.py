"""What a catalogue's own labels say of its tiers: count cells by class and key, and a head for each key."""
