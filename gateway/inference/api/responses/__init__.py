"""`/v1/responses`: OpenAI's API of responses, which may be stored and gone on from."""
