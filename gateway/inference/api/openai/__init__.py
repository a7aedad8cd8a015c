"""OpenAI's endpoints: chat, completions, embeddings, models, tokens."""
