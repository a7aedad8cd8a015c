"""Addresses that no caller may have opened, in every notation, and every field of a request that may hold one."""

from collections.abc import Iterator, Mapping
from typing import Any

Body = dict[str, Any]
Ask = tuple[str, Body]

CATALOG = """
name = "addresses"
[[tiers]]
name = "seeing"
url = "{url}"
model = "seeing"
price = {{ input_usd_per_million = 0.1, output_usd_per_million = 0.1 }}
capabilities = {{ vision = true, audio = true, files = true }}
[[tiers]]
name = "openai"
provider = "openai"
url = "{url}"
model = "gpt-5"
capabilities = {{ vision = true, audio = true, files = true }}
[[tiers]]
name = "claude"
provider = "anthropic"
url = "{url}"
model = "claude-sonnet-4-5"
capabilities = {{ vision = true, files = true }}

[[embeddings]]
name = "vectors"
url = "{url}"
model = "vectors"
input_usd_per_million = 0.5

[[targets]]
name = "others"
url = "{url}"
model = "others"
serves = ["rerank", "moderations", "speech", "images", "transcriptions"]
unit_prices = {{ rerank = 1.0, moderations = 1.0, speech = 1.0, images = 1.0, transcriptions = 1.0 }}
"""
"""Every path leads to the server `url`."""

FORBIDDEN = (
    "169.254.169.254", "2852039166", "0xA9FEA9FE", "0xa9.0xfe.0xa9.0xfe", "0251.0376.0251.0376", "169.254.43518",
    "169.16689662", "169.254.169.254.", "１６９.２５４.１６９.２５４", "169。254。169。254", "169．254｡169.254",
    "①⑥⑨.②⑤④.①⑥⑨.②⑤④", "⑯9.254.⑯9.254", "%31%36%39.254.169.254", "%EF%BC%91%EF%BC%96%EF%BC%99.254.169.254",
    "1\u00ad69.254.169.254", "169.254.169.2\u200b54", "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]",
    "[64:ff9b::a9fe:a9fe]", "[2002:a9fe:a9fe::1]", "[fe80::1]", "[fe80::1%25eth0]", "[fd00:ec2::254]",
    "100.100.100.200", "192.0.0.192", "metadata.google.internal", "METADATA.google.internal.", "metadata",
    "ｍetadata.google.internal", "metadata。google。internal", "instance-data.ec2.internal", "127.0.0.1", "127.1",
    "0x7f.1", "0177.0.0.1", "2130706433", "0", "[::1]", "[::]", "[::ffff:127.0.0.1]", "localhost", "LOCALHOST",
    "x.localhost", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "%6c%6f%63alhost", "loc\u00adalhost", "10.0.0.7", "192.168.1.1", "172.16.5.4",
    "100.64.1.1", "012.0.0.7", "[fc00::7]", "[::10.0.0.7]", "224.0.0.1", "999.1.1.1", "1.2.3.4.5",
)  # fmt: skip
PUBLIC = (
    "https://example.com/cat.png", "http://8.8.8.8/a.png", "https://example.com:8443/?to=http://127.0.0.1/",
    "https://[2606:4700::1111]/a.png", "https://127.0.0.1.nip.io/a.png", "https://bücher.example/ä.png",
)  # fmt: skip


def forbidden_urls() -> Iterator[str]:
    """All URLs, of which the odd ones come last."""
    for host in FORBIDDEN:
        yield f"http://{host}/latest/meta-data/"
        yield f"https://{host}:8443/x"
        yield f"HTTP://user:pw@{host}"
    for host in ("169.254.169.254", "127.0.0.1"):
        yield from (
            f"http://example.com\\@{host}/", f"http://{host}\\@example.com/", f"http:\\\\{host}/", f"http:/{host}/",
            f"http:{host}/", f"http:///{host}/", f"http://a@b@{host}/", f"http://example.com%40{host}/",
            f"http://example.com＠{host}/", f"http://{host}%2f@example.com/", f" http://{host}/", f"ht\ntp://{host}/",
            f"http://\t{host}/", f"\x00http://{host}/", f"//{host}/x", f"\\\\{host}\\x", f"ftp://{host}/",
            f"ws://{host}/", f"gopher://{host}/_x", f"file://{host}/etc/passwd",
        )  # fmt: skip
    yield from ("file:///etc/passwd", "dict://127.0.0.1/", "ldap://example.com/", "jar:http://127.0.0.1!/x")


def _chat(model: str, part: Body, **more: Any) -> Ask:
    return "/v1/chat/completions", {"model": model, "messages": [{"role": "user", "content": [part]}]} | more


def _messages(block: Body, role: str = "user", **more: Any) -> Ask:
    turns = [{"role": role, "content": [block]}] + [{"role": "user", "content": "x"}] * (role != "user")
    return "/v1/messages", {"model": "claude", "max_tokens": 5, "messages": turns} | more


def _responses(part: Body, **more: Any) -> Ask:
    return "/v1/responses", {"model": "openai", "input": [{"role": "user", "content": [part]}]} | more


def places(url: str) -> Mapping[str, Ask]:
    """The requests that have `url` in a field which a server would open, by name."""
    image = {"type": "image_url", "image_url": {"url": url}}
    source = {"type": "url", "url": url}
    called = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    mcp = {"type": "mcp", "server_label": "x", "server_url": url}
    tool_result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image", "source": source}]}
    output = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": url}]}
    return {
        "chat image": _chat("seeing", image),
        "chat image as text": _chat("seeing", {"type": "image_url", "image_url": url}),
        "chat video": _chat("seeing", {"type": "video_url", "video_url": {"url": url}}),
        "chat file": _chat("seeing", {"type": "file", "file": {"file_data": url, "filename": "a.pdf"}}),
        "chat audio": _chat("seeing", {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}}),
        "chat input_image": _chat("seeing", {"type": "input_image", "image_url": url}),
        "chat of Anthropic's form": _chat("seeing", {"type": "image", "source": source}),
        "chat stream": _chat("seeing", image, stream=True),
        "chat field": _chat("seeing", {"type": "text", "text": "x"}, plugins=[{"id": "file", "file_url": url}]),
        "messages image": _messages({"type": "image", "source": source}),
        "messages document": _messages({"type": "document", "source": source}),
        "messages image of the assistant": _messages({"type": "image", "source": source}, "assistant"),
        "messages unknown block": _messages({"type": "video", "source": source}),
        "messages result": _messages(tool_result),
        "messages servers": _messages(
            {"type": "text", "text": "x"}, mcp_servers=[{"type": "url", "name": "x", "url": url}]
        ),
        "responses image": _responses({"type": "input_image", "image_url": url}),
        "responses file": _responses({"type": "input_file", "file_url": url}),
        "responses file data": _responses({"type": "input_file", "file_data": url, "filename": "a.pdf"}),
        "responses tool": _responses({"type": "input_text", "text": "x"}, tools=[mcp]),
        "responses mask": _responses(
            {"type": "input_text", "text": "x"},
            tools=[{"type": "image_generation", "input_image_mask": {"image_url": url}}],
        ),
        "responses result": ("/v1/responses", {"model": "openai", "input": [called, output]}),
        "responses screenshot": (
            "/v1/responses",
            {"model": "openai", "input": [{"type": "computer_call_output", "call_id": "c", "output": {
                "type": "computer_screenshot", "image_url": url}}]},
        ),
        "moderation": ("/v1/moderations", {"model": "others", "input": [image]}),
        "rerank document": ("/v1/rerank", {"model": "others", "query": "q", "documents": [{"image": url}, "b"]}),
        "rerank query": ("/v1/rerank", {"model": "others", "query": {"image_url": url}, "documents": ["a"]}),
        "image": ("/v1/images/generations", {"model": "others", "prompt": "p", "image_urls": [url]}),
        "image of several": ("/v1/images/generations", {"model": "others", "prompt": "p", "images": [{"url": url}]}),
        "speech": ("/v1/audio/speech", {"model": "others", "input": "x", "voice": "a", "ref_audio": url}),
        "embeddings": ("/v1/embeddings", {"model": "vectors", "input": "x", "image_url": url}),
        "embeddings parts": (
            "/v1/embeddings", {"model": "vectors", "input": "x", "messages": [{"role": "user", "content": [image]}]},
        ),
    }  # fmt: skip


def forms(url: str) -> Mapping[str, tuple[str, dict[str, str]]]:
    """The paths and fields of forms with `url`, by name."""
    return {
        "transcription url": ("/v1/audio/transcriptions", {"model": "others", "url": url}),
        "transcription file_url": ("/v1/audio/translations", {"model": "others", "file_url": url}),
        "transcription speaker": ("/v1/audio/transcriptions", {"model": "others", "known_speaker_references[]": url}),
        "edit": ("/v1/images/edits", {"model": "others", "prompt": "p", "mask_url": url}),
    }
