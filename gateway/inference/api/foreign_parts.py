"""Parts of contents and results of tools in the form of any API, of MCP and of agents' libraries, as a chat has them.

What has no such meaning stays as it is.
"""

import json
from typing import Any

# The beginnings of images in base64.
_IMAGES = {"iVBORw0": "png", "/9j/": "jpeg", "R0lGOD": "gif", "UklGR": "webp"}
_SOUNDS = {"mpeg": "mp3", "x-wav": "wav", "wave": "wav", "vnd.wave": "wav"}
TEXTS = ("text", "input_text", "output_text")


def kind_of(part: Any) -> str:
    """The type of a part; "" for what has none."""
    return str(part.get("type")) if isinstance(part, dict) else ""


def chat_part(part: Any) -> Any:
    """A part of a content in the form of any API as one of a chat."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        return part
    if isinstance(source := part.get("source"), dict):
        return _medium(part, source)
    kind, url = part.get("type"), part.get("image_url")
    if kind in ("image_url", "audio_url"):
        return _addressed(part, kind)
    if kind is None and isinstance(part.get("text"), str):
        return {"type": "text"} | part
    if kind == "input_image" and isinstance(url, str | dict):
        detail = {"detail": part["detail"]} if isinstance(part.get("detail"), str) else {}
        return {"type": "image_url", "image_url": (url if isinstance(url, dict) else {"url": url}) | detail}
    if kind == "input_file":
        file = {name: part[name] for name in ("filename", "file_id", "file_data") if isinstance(part.get(name), str)}
        return {"type": "file", "file": {"file_data": part["file_url"]} | file if part.get("file_url") else file}
    body = part.get("image") or part.get("data") or part.get("url")
    media_type = part.get("mimeType") or part.get("mediaType")
    if kind in ("image", "file") and isinstance(body, str):
        # Of MCP and of the AI SDK.
        address = body if ":" in body[:16] else f"data:{media_type or 'image/png'};base64,{body}"
        if kind == "image" or str(media_type).startswith("image/"):
            return {"type": "image_url", "image_url": {"url": address}}
        return {"type": "file", "file": {"filename": part.get("filename") or "document.pdf", "file_data": address}}
    if kind == "resource" and isinstance(part.get("resource"), dict) and "text" in part["resource"]:
        return {"type": "text", "text": part["resource"]["text"]}
    if kind == "search_result":
        head = " ".join(str(one) for one in (part.get("title"), part.get("source")) if one)
        return {"type": "text", "text": f"{head}\n{_result_text(part.get('content'))}".strip()}
    return part


def _addressed(part: dict[str, Any], kind: str) -> dict[str, Any]:
    """An image that is given as its bytes alone, as Ollama takes it, and a sound as vLLM takes it, by its address."""
    given = part.get(kind)
    address = given.get("url") if isinstance(given, dict) else given
    if not isinstance(address, str):
        return part
    if kind == "image_url":
        image = next((one for start, one in _IMAGES.items() if address.startswith(start)), None)
        shown = {"url": f"data:image/{image};base64,{address}"}
        if image is not None:
            return part | {kind: (given | shown) if isinstance(given, dict) else shown}
    head, _, body = address.partition(";base64,")
    if body and head.startswith(("data:application/", "data:text/")):
        # As clients of Gemini and of LiteLLM give documents.
        return {"type": "file", "file": {"filename": "document.pdf", "file_data": address}}
    if not (head.startswith("data:audio/") and body):
        return part
    form = head.removeprefix("data:audio/").partition(";")[0]
    return {"type": "input_audio", "input_audio": {"data": body, "format": _SOUNDS.get(form, form)}}


def _medium(part: dict[str, Any], source: dict[str, Any]) -> dict[str, Any]:
    """An image or a document of Anthropic's form."""
    body = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    if part.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": body}}
    if part.get("type") != "document":
        return part
    if source.get("type") == "text":
        return {"type": "text", "text": source.get("data")}
    return {"type": "file", "file": {"filename": part.get("title") or "document.pdf", "file_data": body}}


def chat_result(content: Any) -> Any:
    """The content of a tool's result: its text, or parts where it has media; JSON of another form as its text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts = [chat_part(part) for part in content if part is not None] if isinstance(content, list) else [content]
    texts = [part.get("text") for part in parts if kind_of(part) in TEXTS]
    if len(texts) == len(parts):
        return "\n".join(str(text or "") for text in texts)
    if not any(kind_of(part) in ("image_url", "file", "input_audio", "video_url") for part in parts):
        return json_text(content)
    known = ("image_url", "file", "input_audio", "video_url", *TEXTS)
    return [part if kind_of(part) in known else {"type": "text", "text": json_text(part)} for part in parts]


def _result_text(content: Any) -> str:
    found = chat_result(content)
    return found if isinstance(found, str) else json_text(found)


def json_text(value: Any) -> str:
    """A value as its JSON."""
    return json.dumps(value, ensure_ascii=False)
