"""The endpoints that answer prompts, in the shapes of the OpenAI API, and what turns bodies into requests."""
