"""What a scripted server that goes on from the beginning of an answer reads in a request, on each wire."""

import json
from random import Random
from typing import Any

PIECES = ("word", " ", "\n\n", "  ", "é", "漢字", "🙂", '"', "\\", ". ", "\t", "a b", "Ünï", "-", "0", " and")


def known_text(seed: int, pieces: int = 60) -> str:
    """The text of a seed: words, all kinds of spaces and characters of up to four bytes, none of them at its ends."""
    draw = Random(seed)
    return f"({''.join(draw.choice(PIECES) for _ in range(pieces))})"


def begun(body: dict[str, Any], prompt: str) -> str:
    """Return the beginning of the answer that a request holds: its last turn, of the assistant, or what follows
    `prompt` in a raw one; "" for none."""
    raw = body.get("prompt", body.get("text_input"))
    if raw is not None:
        return str(raw).removeprefix(prompt)
    if "messages" not in body:
        return ""
    last = body["messages"][-1]
    content = last["content"] if last["role"] == "assistant" else ""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def rest(text: str, body: dict[str, Any], prompt: str, *, needs_fields: bool) -> str:
    """Return what a server says to a request whose answer is `text`: what follows its beginning, and all of it where
    the request does not ask to go on as that server expects."""
    start = begun(body, prompt)
    is_asked = body.get("continue_final_message") is True and body.get("add_generation_prompt") is False
    if needs_fields and "messages" in body and not is_asked:
        return text
    assert text.startswith(start), json.dumps(body)
    return text[len(start) :]
