"""Text to token ids and back: tokenisers, chat templates, incremental detokenisation, stop strings. No torch."""
