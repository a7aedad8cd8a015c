"""The table of losses: for each kind of block or field, what a server of each dialect gets of what a client of each
dialect sends (docs/results/losses.md).

Each cell is one real request through the gateway to a server that records it.
"""

import asyncio
import itertools
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import click
import httpx
import msgspec

from benchmarks.gateway.fidelity.provider import Provider, recording_provider
from benchmarks.gateway.fidelity.wires import KEYS
from benchmarks.running_server import running_server
from gateway.base.settings import Settings

Body = dict[str, Any]
Outcome = Literal["kept", "changed", "left out", "refused", "hint", "lost", "–"]
CLIENTS = ("chat", "responses", "messages", "gemini")
SERVERS = ("chat", "responses", "messages", "gemini", "bedrock")
SIGNS = {
    "kept": "kept{how}",
    "changed": "as {how}",
    "left out": "named",
    "refused": "400",
    "hint": "a hint",
    "lost": "LOST",
}

_ENTRIES = {
    "chat": '[tiers.remote]\nkind = "vllm"\nmax_context = 200000\nbase_url = "{origin}/vllm/v1"\nmodel = "qwen3-8b"\n',
    "responses": '[tiers.remote]\nkind = "openai-provider"\nmax_context = 200000\nresponses = "always"\n'
    'api_key_env = "OPENAI_API_KEY"\nbase_url = "{origin}/openai/v1"\nmodel = "gpt-5"\n',
    "messages": 'provider = "anthropic"\nurl = "{origin}/anthropic/v1"\nmodel = "claude-sonnet-4-5"\n',
    "gemini": 'provider = "gemini"\nurl = "{origin}/gemini/v1beta"\nmodel = "gemini-3-flash"\n',
    "bedrock": 'provider = "bedrock"\nurl = "{origin}/bedrock/bedrock"\nmodel = "anthropic.claude-sonnet-4-5-v1:0"\n',
}
_ABLE = "vision = true, audio = true, files = true, tools = true, json_schema = true, logprobs = true"

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PDF, WAV, MP4 = "JVBERi0xLjQKJSVFT0Y=", "UklGRiQAAABXQVZFZm10IBAAAAABAAEA", "AAAAHGZ0eXBpc29tAAACAGlzb20="
PICTURE, WORD = "https://example.com/mark.png", "markedword"
_SCHEMA = {
    "type": "object",
    "properties": {WORD: {"type": "string"}},
    "required": [WORD],
    "additionalProperties": False,
}


class Kind(msgspec.Struct, frozen=True):
    """One row: what is sent in each client's dialect, and how it is found in what a server gets."""

    name: str
    mark: str
    """What must be in the server's body."""
    sent: dict[str, Body | list[Body]]
    """By client's dialect: further fields of the body, or parts of the last user's turn."""
    own: dict[str, str]
    """By server's dialect: a pattern that shows that it is there as itself. Else a mark elsewhere is a change."""
    how: str = "text"
    """What it becomes where it is changed."""
    instead: dict[str, str] = {}
    """By server's dialect: a pattern that shows this change, if the mark does not."""
    is_shown: bool = False
    """Whether the mark alone tells nothing, because it is there anyway."""
    is_hint: bool = False
    """Whether it changes no answer."""


def _everywhere(own: str) -> dict[str, str]:
    return dict.fromkeys(SERVERS, own)


_URL = f"data:image/png;base64,{PNG}"
_PARAMETERS = {"name": WORD, "description": "d", "parameters": _SCHEMA}
_CHAT_TOOL = {"type": "function", "function": _PARAMETERS}
_RESPONSES_TOOL = {"type": "function", **_PARAMETERS, "strict": False}
_MESSAGES_TOOL = {"name": WORD, "description": "d", "input_schema": _SCHEMA}
_GEMINI_TOOL = {"functionDeclarations": [{"name": WORD, "description": "d", "parametersJsonSchema": _SCHEMA}]}
_TOOLS: dict[str, Body] = {
    "chat": {"tools": [_CHAT_TOOL]},
    "responses": {"tools": [_RESPONSES_TOOL]},
    "messages": {"tools": [_MESSAGES_TOOL]},
    "gemini": {"tools": [_GEMINI_TOOL]},
}


def _with_tools(**fields: Body) -> dict[str, Body | list[Body]]:
    return {client: _TOOLS[client] | body for client, body in fields.items()}


def _history(call: Body | None = None, result: Body | None = None) -> dict[str, Body | list[Body]]:
    """A conversation with a call of the tool and its result, which have these fields more in Messages."""
    arguments = {"city": WORD}
    use = {"type": "tool_use", "id": "toolu_0123456789abcdef", "name": WORD, "input": arguments}
    answered = {"type": "tool_result", "tool_use_id": use["id"], "content": "ok"}
    question = "Q"
    return _with_tools(
        chat={
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": None, "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": WORD, "arguments": json.dumps(arguments)}}
                ]},
                {"role": "tool", "tool_call_id": "c1", "content": "ok"},
            ]
        },
        responses={
            "input": [
                {"role": "user", "content": question},
                {"type": "function_call", "call_id": "c1", "name": WORD, "arguments": json.dumps(arguments)},
                {"type": "function_call_output", "call_id": "c1", "output": "ok"},
            ]
        },
        messages={
            "messages": [
                {"role": "user", "content": question},
                {"role": "assistant", "content": [use | (call or {})]},
                {"role": "user", "content": [answered | (result or {})]},
            ]
        },
        gemini={
            "contents": [
                {"role": "user", "parts": [{"text": question}]},
                {"role": "model", "parts": [{"functionCall": {"id": "c1", "name": WORD, "args": arguments}}]},
                {"role": "user", "parts": [
                    {"functionResponse": {"id": "c1", "name": WORD, "response": {"result": "ok"}}}
                ]},
            ]
        },
    )  # fmt: skip


def _middle(role: str) -> dict[str, Body | list[Body]]:
    turns = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}, {"role": "user", "content": "R"}]
    said = {"role": role, "content": WORD}
    return {"chat": {"messages": [*turns, said]}, "responses": {"input": [*turns, said]}, "messages": {
        "messages": [*turns, {"role": "system", "content": WORD}]
    }}  # fmt: skip


_IMAGE_IN_RESULT = _history(result={"content": [
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}
]})  # fmt: skip
_FORMAT = {"type": "json_schema", "schema": _SCHEMA}
KINDS = (
    Kind("text", WORD, {
        "chat": [{"type": "text", "text": WORD}], "responses": [{"type": "input_text", "text": WORD}],
        "messages": [{"type": "text", "text": WORD}], "gemini": [{"text": WORD}],
    }, _everywhere(WORD)),
    Kind("system prompt", WORD, {
        "chat": {"messages": [{"role": "system", "content": WORD}, {"role": "user", "content": "Q"}]},
        "responses": {"instructions": WORD}, "messages": {"system": WORD},
        "gemini": {"systemInstruction": {"parts": [{"text": WORD}]}},
    }, {"chat": '"role": "system"', "responses": '"instructions"|"role": "system"', "messages": '"system"', "gemini":
        '"systemInstruction"', "bedrock": '"system"'}),
    Kind("system turn in the middle", WORD, _middle("developer"),
         {"chat": '"role": "(system|developer)"', "responses": '"role": "(system|developer)"'}, "a user's turn"),
    Kind("image, bytes", PNG[:40], {
        "chat": [{"type": "image_url", "image_url": {"url": _URL}}],
        "responses": [{"type": "input_image", "image_url": _URL}],
        "messages": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}}],
        "gemini": [{"inlineData": {"mimeType": "image/png", "data": PNG}}],
    }, {"chat": '"image_url"', "responses": '"input_image"', "messages": '"image"', "gemini": '"inlineData"',
        "bedrock": '"image"'}),
    Kind("image, address", PICTURE, {
        "chat": [{"type": "image_url", "image_url": {"url": PICTURE}}],
        "responses": [{"type": "input_image", "image_url": PICTURE}],
        "messages": [{"type": "image", "source": {"type": "url", "url": PICTURE}}],
        "gemini": [{"fileData": {"mimeType": "image/png", "fileUri": PICTURE}}],
    }, {"chat": '"image_url"', "responses": '"input_image"', "messages": '"image"', "gemini": '"fileData"'}),
    Kind("PDF", PDF, {
        "chat": [{"type": "file", "file": {"filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}}],
        "responses": [{"type": "input_file", "filename": "a.pdf", "file_data": f"data:application/pdf;base64,{PDF}"}],
        "messages": [{"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}}],
        "gemini": [{"inlineData": {"mimeType": "application/pdf", "data": PDF}}],
    }, {"chat": '"file"', "responses": '"input_file"', "messages": '"document"', "gemini": '"inlineData"',
        "bedrock": '"document"'}),
    Kind("audio", WAV, {
        "chat": [{"type": "input_audio", "input_audio": {"data": WAV, "format": "wav"}}],
        "gemini": [{"inlineData": {"mimeType": "audio/wav", "data": WAV}}],
    }, {"chat": '"input_audio"', "gemini": '"inlineData"'}),
    Kind("video", MP4, {
        "chat": [{"type": "video_url", "video_url": {"url": f"data:video/mp4;base64,{MP4}"}}],
        "gemini": [{"inlineData": {"mimeType": "video/mp4", "data": MP4}}],
    }, {"chat": '"video_url"', "gemini": '"inlineData"', "bedrock": '"video"'}),
    Kind("call and result", WORD, _history(), {
        "chat": '"tool_calls"', "responses": '"function_call"', "messages": '"tool_use"', "gemini": '"functionCall"',
        "bedrock": '"toolUse"',
    }),
    Kind("result of a failed call", WORD, {"messages": _history(result={"is_error": True})["messages"]},
         {"messages": '"is_error"', "bedrock": '"error"'}, "`Error:`"),
    Kind("image in a result", PNG[:40], {"messages": _IMAGE_IN_RESULT["messages"]},
         {"messages": '"tool_result"'}, "the user's"),
    Kind("search result with its source", WORD, {
        "messages": [{"type": "search_result", "title": "T", "source": "https://a.b/c",
                      "content": [{"type": "text", "text": WORD}]}],
    }, {"messages": '"search_result"'}),
    Kind("thoughts without a seal", WORD, {
        "chat": {"messages": [{"role": "user", "content": "Q"},
                              {"role": "assistant", "content": "A", "reasoning_content": WORD},
                              {"role": "user", "content": "R"}]},
        "gemini": {"contents": [{"role": "user", "parts": [{"text": "Q"}]},
                                {"role": "model", "parts": [{"text": WORD, "thought": True}, {"text": "A"}]},
                                {"role": "user", "parts": [{"text": "R"}]}]},
    }, {"chat": '"reasoning_content"', "gemini": '"thought"'}),
    Kind("mark of a cache", "5m", {
        "chat": [{"type": "text", "text": "Q", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
        "messages": [{"type": "text", "text": "Q", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
    }, {"messages": '"cache_control"', "bedrock": '"cachePoint"'}, is_shown=True, is_hint=True),
    Kind("tool and its schema", WORD, _with_tools(chat={}, responses={}, messages={}, gemini={}), _everywhere(WORD)),
    Kind("custom tool (text)", WORD, {
        "chat": {"tools": [{"type": "custom", "custom": {"name": WORD, "description": "d"}}]},
        "responses": {"tools": [{"type": "custom", "name": WORD, "description": "d"}]},
    }, {"responses": '"custom"'}, "a function"),
    Kind("a call that must be made", WORD, _with_tools(
        chat={"tool_choice": {"type": "function", "function": {"name": WORD}}},
        responses={"tool_choice": {"type": "function", "name": WORD}},
        messages={"tool_choice": {"type": "tool", "name": WORD}},
        gemini={"toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": [WORD]}}},
    ), {"chat": r'"tool_choice": \{', "responses": r'"tool_choice": \{', "messages": '"type": "tool"',
        "gemini": '"ANY"', "bedrock": '"toolChoice"'}, is_shown=True),
    Kind("one call at a time", WORD, _with_tools(
        chat={"parallel_tool_calls": False}, responses={"parallel_tool_calls": False},
        messages={"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    ), {"chat": '"parallel_tool_calls": false', "responses": '"parallel_tool_calls": false',
        "messages": '"disable_parallel_tool_use": true'}, is_shown=True),
    Kind("JSON schema of the answer", WORD, {
        "chat": {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA}}},
        "responses": {"text": {"format": _FORMAT | {"name": "a"}}},
        "messages": {"output_config": {"format": _FORMAT}},
        "gemini": {"generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": _SCHEMA}},
    }, {"chat": '"json_schema"', "responses": '"json_schema"', "messages": '"json_schema"', "gemini":
        '"responseJsonSchema"', "bedrock": '"outputConfig"'}, "an instruction"),
    Kind("stop string", "MARKSTOP", {
        "chat": {"stop": ["MARKSTOP"]}, "messages": {"stop_sequences": ["MARKSTOP"]},
        "gemini": {"generationConfig": {"stopSequences": ["MARKSTOP"]}},
    }, _everywhere("MARKSTOP")),
    Kind("temperature", "0.375", {
        "chat": {"temperature": 0.375}, "responses": {"temperature": 0.375}, "messages": {"temperature": 0.375},
        "gemini": {"generationConfig": {"temperature": 0.375}},
    }, _everywhere("0.375")),
    Kind("seed", "424242", {
        "chat": {"seed": 424242}, "gemini": {"generationConfig": {"seed": 424242}},
    }, _everywhere("424242")),
    Kind("top_k", "1717", {
        "chat": {"top_k": 1717}, "messages": {"top_k": 1717}, "gemini": {"generationConfig": {"topK": 1717}},
    }, _everywhere(": 1717")),
    Kind("penalty", "0.625", {
        "chat": {"presence_penalty": 0.625}, "gemini": {"generationConfig": {"presencePenalty": 0.625}},
    }, _everywhere("0.625")),
    Kind("limit of the answer", "3456", {
        "chat": {"max_completion_tokens": 3456}, "responses": {"max_output_tokens": 3456},
        "messages": {"max_tokens": 3456}, "gemini": {"generationConfig": {"maxOutputTokens": 3456}},
    }, _everywhere("3456")),
    Kind("effort of thinking", "high", {
        "chat": {"reasoning_effort": "high"}, "responses": {"reasoning": {"effort": "high"}},
        "gemini": {"generationConfig": {"thinkingConfig": {"thinkingLevel": "HIGH"}}},
    }, {"chat": '"high"', "responses": '"high"', "gemini": '"thinkingLevel"'}, "a budget",
       {"messages": '"budget_tokens"', "bedrock": '"budget_tokens"'}, is_shown=True),
    Kind("a user's name", "user_mark", {
        "chat": {"user": "user_mark"}, "responses": {"user": "user_mark"},
        "messages": {"metadata": {"user_id": "user_mark"}},
    }, _everywhere("user_mark")),
    Kind("safety settings", "BLOCK_NONE", {
        "gemini": {"safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}]},
    }, {"gemini": "BLOCK_NONE"}),
)  # fmt: skip


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One request: the row, the client's dialect, the server's, and what became of it."""

    kind: str
    client: str
    server: str
    outcome: Outcome
    how: str = ""


def body_of(kind: Kind, client: str) -> Body | None:
    """The request of a client; None where its dialect has no such thing."""
    if client not in kind.sent:
        return None
    sent = kind.sent[client]
    parts = sent if isinstance(sent, list) else []
    fields = {} if isinstance(sent, list) else sent
    if client == "gemini":
        return {"contents": [{"role": "user", "parts": [{"text": "Q"}, *parts]}]} | fields
    if client == "responses":
        return {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Q"}, *parts]}]} | fields
    turns = {"messages": [{"role": "user", "content": [{"type": "text", "text": "Q"}, *parts]}]}
    return turns | ({"max_tokens": 999} if client == "messages" else {}) | fields


def request_to(client: str, model: str, body: Body) -> tuple[str, Body]:
    """The path and the body by which a client asks this model."""
    paths = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
    if client == "gemini":
        return f"/v1beta/models/{model}:generateContent", body
    return paths[client], {"model": model} | body


async def cell(http: httpx.AsyncClient, provider: Provider, kind: Kind, client: str, server: str) -> Cell:
    """Send the row's request once."""
    body = body_of(kind, client)
    if body is None:
        return Cell(kind=kind.name, client=client, server=server, outcome="–")
    before = len(provider.calls)
    path, sent = request_to(client, server, body)
    told = await http.post(path, json=sent)
    named = " ".join(told.headers.get(name, "") for name in ("x-aio-ignored-fields", "x-aio-changed-fields"))
    if len(provider.calls) == before:
        return Cell(kind=kind.name, client=client, server=server, outcome="refused", how=told.text[:300])
    path, got = provider.calls[-1]
    # A server with both of OpenAI's APIs gets in a chat what Responses cannot say.
    dialect = "chat" if path.endswith("/chat/completions") else server
    outcome = outcome_of(kind, dialect, json.dumps(got, ensure_ascii=False), is_named=bool(named.strip()))
    how = {"kept": "" if dialect == server else ", in a chat", "changed": kind.how}.get(outcome, named)
    return Cell(kind=kind.name, client=client, server=server, outcome=outcome, how=how)


def outcome_of(kind: Kind, dialect: str, got: str, *, is_named: bool) -> Outcome:
    """What became of a kind in the JSON that a server of this dialect got. `is_named`: whether the
    answer names a field that was left out or changed."""
    own, instead = kind.own.get(dialect), kind.instead.get(dialect)
    if own is not None and re.search(own, got) and (kind.is_shown or kind.mark in got):
        return "kept"
    if re.search(instead, got) if instead is not None else (kind.mark in got and not kind.is_shown):
        return "changed"
    return "left out" if is_named else "hint" if kind.is_hint else "lost"


def catalogue(origin: str) -> str:
    """A tier for the server of each dialect, named after it, at the recording server of this address."""
    price = "price = { input_usd_per_million = 1, output_usd_per_million = 1 }"
    entries = [
        f'[[tiers]]\nname = "{name}"\n{price}\ncapabilities = {{ {_ABLE} }}\n{_ENTRIES[name]}' for name in SERVERS
    ]
    return "\n".join(entries).replace("{origin}", origin)


async def table() -> list[Cell]:
    """All cells, one after another: the server's record has no other request in it."""
    cells: list[Cell] = []
    async with recording_provider() as provider:
        with tempfile.TemporaryDirectory(prefix="aio-losses-") as folder:
            catalog = Path(folder) / "losses.toml"
            catalog.write_text(catalogue(provider.origin))
            settings = Settings(data_dir=folder, catalog=str(catalog), monitor=False)
            async with running_server(settings, KEYS | {"AIO_MONITOR": "false"}) as server:
                headers = {"authorization": "Bearer unused", "x-aio-cache": "off"}
                async with httpx.AsyncClient(base_url=server.url, timeout=30, headers=headers) as http:
                    for kind, client, name in itertools.product(KINDS, CLIENTS, SERVERS):
                        cells.append(await cell(http, provider, kind, client, name))
    return cells


def page(cells: Sequence[Cell]) -> str:
    """The page of the docs: one table for each client's dialect."""
    cell_by_key = {(case.kind, case.client, case.server): case for case in cells}
    lines: list[str] = []
    for client in CLIENTS:
        lines += [f"## A client of {_NAMES[client]}", "", "| | " + " | ".join(_NAMES[api] for api in SERVERS) + " |"]
        lines.append("| --- |" + " --- |" * len(SERVERS))
        for kind in KINDS:
            row = [cell_by_key[kind.name, client, server] for server in SERVERS]
            if row[0].outcome != "–":
                lines.append(f"| {kind.name} | " + " | ".join(map(_written, row)) + " |")
        lines.append("")
    return "\n".join(lines)


_NAMES = {"chat": "chats", "responses": "Responses", "messages": "Messages", "gemini": "Gemini", "bedrock": "Converse"}


def _written(case: Cell) -> str:
    return SIGNS[case.outcome].format(how=case.how)


def outcomes_of(page: str) -> dict[tuple[str, str, str], Outcome]:
    """What a page of the docs says of each kind, client and server."""
    outcomes: dict[tuple[str, str, str], Outcome] = {}
    clients = {name: client for client, name in _NAMES.items()}
    for section in page.split("\n## A client of ")[1:]:
        title, *lines = section.splitlines()
        for line in lines:
            kind, *signs = [text.strip() for text in line.strip("|").split("|")]
            if len(signs) == len(SERVERS) and kind.strip("- "):
                for server, sign in zip(SERVERS, signs, strict=True):
                    outcomes[kind, clients[title], server] = _outcome(sign)
    return outcomes


def _outcome(sign: str) -> Outcome:
    whole: dict[str, Outcome] = {"named": "left out", "400": "refused", "a hint": "hint"}
    return whole.get(sign) or ("kept" if sign.startswith("kept") else "changed")


@click.command()
@click.option(
    "--page", "path", type=click.Path(path_type=Path), help="Write the tables into this page, after its text."
)
@click.option("--details", is_flag=True, help="Show why each cell is not kept.")
def losses(path: Path | None, details: bool) -> None:
    """What each server's dialect gets of each kind of block that each client's dialect sends."""
    cells = asyncio.run(table())
    text = page(cells)
    if path is not None:
        head = path.read_text("utf-8").partition("\n## ")[0] if path.exists() else ""
        path.write_text(f"{head.rstrip()}\n\n{text}", "utf-8")
    if details:
        for case in cells:
            if case.outcome in ("left out", "refused", "lost"):
                click.echo(f"{case.outcome}: {case.kind}, {case.client} to {case.server}: {case.how}")
    elif path is None:
        click.echo(text)
