"""Setting up a catalogue of one's own models: find them, propose tiers, write the file, ask each tier a question."""
