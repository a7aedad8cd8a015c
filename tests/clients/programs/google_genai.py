"""A tool loop of google-genai: a chat calls the function by itself, streamed."""

from documented import client
from google.genai import types


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


chat = client.chats.create(model="auto", config=types.GenerateContentConfig(tools=[add]))
pieces = chat.send_message_stream("Add 1 and 2, 3 and 4, then both sums.")
said = [piece.text or "" for piece in pieces if not piece.function_calls]
print("".join(said))
