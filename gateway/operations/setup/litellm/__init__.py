"""From LiteLLM's config.yaml to a catalogue and settings, with an account of every field."""
