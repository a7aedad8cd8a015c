"""What a request may ask for beyond tokens at the list's price, and tokens of other prices."""

import base64
from typing import Any

from tests.bills.row import Body, Row, Server, chat, message, response, words

OPENAI = Server("openai", "openai", "gpt-5")
MINI = Server("openai-mini", "openai", "gpt-4o-mini", "capabilities = { vision = true }")
READING = Server("openai-reading", "openai", "gpt-5", "capabilities = { files = true }")
OLDER = Server("openai-older", "openai", "gpt-4.1")
AUDIO = Server("openai-audio", "openai", "gpt-audio", "capabilities = { audio = true }")
SEARCHING = Server("openai-search", "openai", "gpt-4o-search-preview")
CLAUDE = Server("claude", "anthropic", "claude-sonnet-4-5")
OPUS = Server("opus", "anthropic", "claude-opus-4-6")
XAI = Server("xai", "xai", "grok-4")
OPENROUTER = Server("openrouter", "openrouter", "openai/gpt-4o")
WATCHING = Server("openrouter-video", "openrouter", "google/gemini-2.5-pro", "capabilities = { vision = true }")
OWN = Server("own-search", "xai", "grok-4", "extra_prices = { live_search = 0.001 }")

_OPENAI = "https://platform.openai.com/docs/pricing"
_PRIORITY = "https://openai.com/api-priority-processing/"
_CLAUDE = "https://platform.claude.com/docs/en/about-claude/pricing"
_FAST = "https://platform.claude.com/docs/en/build-with-claude/fast-mode"
_VISION = "https://platform.openai.com/docs/guides/images-vision#calculating-costs"
_XAI = "https://docs.x.ai/developers/pricing"
_OPENROUTER = "https://openrouter.ai/docs/web-search"
_ASKED = [{"role": "user", "content": words(1000)}]
_CHAT: Body = {"messages": _ASKED, "max_tokens": 500}
_RESPONSE: Body = {"input": words(1000), "max_output_tokens": 500}
_MESSAGE: Body = {"messages": _ASKED, "max_tokens": 500}
_CHAT_USAGE: Body = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
_RESPONSE_USAGE: Body = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}
_MESSAGE_USAGE: Body = {"input_tokens": 1000, "output_tokens": 200}
_STREAM = {"stream": True}


def _usd(prompt: float, answer: float, prompt_tokens: int = 1000, answer_tokens: int = 200) -> float:
    return (prompt * prompt_tokens + answer * answer_tokens) / 1e6


GPT_5, GPT_4_1, SONNET, OPUS_USD, GROK = _usd(1.25, 10), _usd(2, 8), _usd(3, 15), _usd(5, 25), _usd(3, 15)


def _chat(name: str, server: Server, asked: Body, usage: Body, usd: float, source: str, **more: Any) -> Row:
    told = more.pop("told", {})
    answer = chat(_CHAT_USAGE | usage, **told)
    return Row(f"a chat: {name}", server, "chat/completions", _CHAT | asked, answer, usd, source, **more)


def _response(name: str, asked: Body, usd: float, source: str = _OPENAI, server: Server = OPENAI, **more: Any) -> Row:
    told, usage, items = more.pop("told", {}), _RESPONSE_USAGE | more.pop("usage", {}), more.pop("items", ())
    answer = response(usage, items, **told)
    return Row(f"a response: {name}", server, "responses", _RESPONSE | asked, answer, usd, source, **more)


def _message(
    name: str, server: Server, asked: Body, usage: Body, usd: float, source: str = _CLAUDE, **more: Any
) -> Row:
    return Row(f"a message: {name}", server, "messages", _MESSAGE | asked, message(_MESSAGE_USAGE | usage), usd, source,
               **more)  # fmt: skip


def _searches(count: int) -> list[Body]:
    """As many searches, and one look at a page, which costs nothing."""
    found = [{"id": f"ws_{n}", "type": "web_search_call", "status": "completed",
              "action": {"type": "search", "query": "x"}} for n in range(count)]  # fmt: skip
    return [*found, {"id": "ws_p", "type": "web_search_call", "status": "completed", "action": {"type": "open_page"}}]


_PICTURE = "data:image/png;base64," + base64.b64encode(b"\x89PNG" + b"\0" * 64).decode()
_FIVE_PICTURES: Body = {
    "messages": [{
        "role": "user",
        "content": [{"type": "image_url", "image_url": {"url": _PICTURE, "detail": "low"}}] * 5
        + [{"type": "text", "text": "What is it?"}],
    }],
    "max_tokens": 50,
}  # fmt: skip
_SOUND = {"type": "input_audio", "input_audio": {"data": base64.b64encode(b"\0" * 9000).decode(), "format": "mp3"}}
_PDF = "data:application/pdf;base64," + base64.b64encode(b"%PDF-1.7" + b"\0" * 2000).decode()
_VIDEO = {"type": "video_url", "video_url": {"url": "https://example.com/a.mp4"}}
_WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}
_CONTAINER = {"type": "code_interpreter", "container": {"type": "auto"}}
_RAN = [{"id": f"ci_{n}", "type": "code_interpreter_call", "status": "completed", "container_id": "cntr_1", "code": "1",
         "outputs": []} for n in range(3)]  # fmt: skip
_MCP = {"type": "mcp", "server_label": "x", "server_url": "https://example.com/mcp", "require_approval": "never"}
_PRIORITY_ASKED = {"service_tier": "priority"}


def _of(*parts: Body) -> Body:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": words(100)}, *parts]}]}


ROWS = [
    # Nothing besides tokens.
    _chat("without extras", OPENAI, {}, {}, GPT_5, _OPENAI),
    _response("without extras, streamed", _STREAM, GPT_5),
    _message("without extras, streamed", CLAUDE, _STREAM, {}, SONNET),
    # Classes of service.
    _chat("priority", OPENAI, _PRIORITY_ASKED, {}, 2 * GPT_5, _PRIORITY, told=_PRIORITY_ASKED),
    _chat("priority of GPT-4.1, streamed", OLDER, _PRIORITY_ASKED | _STREAM, {}, 1.75 * GPT_4_1, _PRIORITY,
          told=_PRIORITY_ASKED),
    _chat("priority that the server lowered to default", OPENAI, _PRIORITY_ASKED, {}, GPT_5, _PRIORITY,
          told={"service_tier": "default"}),
    _chat("priority by the project's setting", OPENAI, {}, {}, 2 * GPT_5, _PRIORITY, told=_PRIORITY_ASKED),
    _chat("flex", OPENAI, {"service_tier": "flex"}, {}, GPT_5 / 2, "https://platform.openai.com/docs/guides/flex-processing",
          told={"service_tier": "flex"}),
    _response("priority, streamed", _PRIORITY_ASKED | _STREAM, 2 * GPT_5, _PRIORITY, told=_PRIORITY_ASKED),
    _chat("priority whose price is not known", XAI, _PRIORITY_ASKED, {}, 2 * GROK, _XAI, expected="refused"),
    _message("fast mode", OPUS, {"speed": "fast"}, {"speed": "fast"}, 6 * OPUS_USD, _FAST),
    _message("fast mode, streamed, that was not to be had", OPUS, {"speed": "fast"} | _STREAM, {"speed": "standard"},
             OPUS_USD, _FAST),
    _message("fast mode of a model without its price", CLAUDE, {"speed": "fast"}, {}, 6 * SONNET, _FAST,
             expected="refused"),
    _message("inference in the US", OPUS, {"inference_geo": "us"}, {"inference_geo": "us"}, 1.1 * OPUS_USD,
             "https://platform.claude.com/docs/en/manage-claude/data-residency"),
    _message("a cache written for an hour", CLAUDE, {},
             {"input_tokens": 100, "cache_creation_input_tokens": 900,
              "cache_creation": {"ephemeral_1h_input_tokens": 900, "ephemeral_5m_input_tokens": 0}},
             (100 * 3 + 900 * 6 + 200 * 15) / 1e6),
    # Tools that the provider runs.
    _message("25 searches of the web", CLAUDE, {"tools": [_WEB_SEARCH | {"max_uses": 25}]},
             {"input_tokens": 300_000, "server_tool_use": {"web_search_requests": 25}},
             25 * 0.01 + (300_000 * 6 + 200 * 22.5) / 1e6),
    _message("3 searches without a bound in the request, streamed", CLAUDE, {"tools": [_WEB_SEARCH]} | _STREAM,
             {"server_tool_use": {"web_search_requests": 3}}, 3 * 0.01 + SONNET),
    _message("3 searches of a key without a budget", CLAUDE, {"tools": [_WEB_SEARCH]},
             {"server_tool_use": {"web_search_requests": 3}}, 3 * 0.01 + SONNET, budget=None),
    _message("a compaction in mid-answer, streamed", OPUS,
             {"context_management": {"edits": [{"type": "compact_20260112"}]}} | _STREAM,
             {"iterations": [{"type": "compaction", "input_tokens": 1100, "output_tokens": 300},
                             {"type": "message", "input_tokens": 1000, "output_tokens": 200}]},
             OPUS_USD + (1100 * 5 + 300 * 25) / 1e6, "https://platform.claude.com/docs/en/build-with-claude/compaction"),
    _message("pages that are fetched", CLAUDE, {"tools": [{"type": "web_fetch_20250910", "name": "web_fetch"}]},
             {"input_tokens": 150_000, "server_tool_use": {"web_fetch_requests": 4}},
             (150_000 * 3 + 200 * 15) / 1e6),
    _message("code execution", CLAUDE, {"tools": [{"type": "code_execution_20250825", "name": "code_execution"}]}, {},
             SONNET + 0.05, expected="refused"),
    _message("remote MCP servers", CLAUDE,
             {"mcp_servers": [{"type": "url", "url": "https://example.com/mcp", "name": "x"}]}, {}, SONNET,
             expected="refused"),
    _response("2 searches of the web", {"tools": [{"type": "web_search"}], "max_tool_calls": 5}, 2 * 0.01 + GPT_5,
              items=_searches(2)),
    _response("2 searches without a bound in the request, streamed", {"tools": [{"type": "web_search"}]} | _STREAM,
              2 * 0.01 + GPT_5, items=_searches(2)),
    _response("searches by a model that does not reason",
              {"tools": [{"type": "web_search_preview"}], "max_tool_calls": 5}, 4 * 0.025 + GPT_4_1, server=OLDER,
              items=_searches(4)),
    _response("a search of files", {"tools": [{"type": "file_search", "vector_store_ids": ["vs_1"]}]}, 0.0025 + GPT_5,
              items=[{"id": "fs_1", "type": "file_search_call", "status": "completed", "queries": ["x"]}]),
    _response("code in a container", {"tools": [_CONTAINER]}, 0.03 + GPT_5, items=_RAN),
    _response("remote MCP servers", {"tools": [_MCP]}, GPT_5, expected="refused"),
    _response("images that it makes", {"tools": [{"type": "image_generation"}]}, GPT_5, expected="refused"),
    _chat("a model that always searches", SEARCHING, {"web_search_options": {}}, {}, 0.025 + _usd(2.5, 10), _OPENAI),
    _chat("live search", XAI, {"search_parameters": {"mode": "on", "max_search_results": 8}}, {"num_sources_used": 6},
          6 * 0.025 + GROK, _XAI),
    _chat("live search whose cost the server tells, streamed", XAI, {"search_parameters": {"mode": "on"}} | _STREAM,
          {"num_sources_used": 6, "cost_in_usd_ticks": round((6 * 0.025 + GROK) * 1e10)}, 6 * 0.025 + GROK, _XAI),
    _chat("live search at the catalogue's own price", OWN, {"search_parameters": {"mode": "on"}},
          {"num_sources_used": 6}, 6 * 0.001 + GROK, _XAI),
    _chat("a plugin that searches by Exa", OPENROUTER,
          {"plugins": [{"id": "web", "engine": "exa", "max_results": 10}]}, {"cost": 10 * 0.004 + _usd(2.5, 10)},
          10 * 0.004 + _usd(2.5, 10), _OPENROUTER),
    _chat("a plugin without a known price", OPENROUTER, {"plugins": [{"id": "file-parser"}]}, {"cost": 2.0}, 2.0,
          "https://openrouter.ai/docs/features/multimodal/pdfs", expected="refused"),
    _chat("a choice of providers", OPENROUTER, {"provider": {"order": ["dear"]}}, {"cost": 1.0}, 1.0,
          "https://openrouter.ai/docs/features/provider-routing", expected="refused"),
    # Images, audio, files, videos.
    _chat("five images at low detail of a model that takes 2,833 tokens for one", MINI, _FIVE_PICTURES,
          {"prompt_tokens": 14_180, "completion_tokens": 20, "total_tokens": 14_200},
          (14_180 * 0.15 + 20 * 0.6) / 1e6, _VISION),
    _chat("a file of many pages", READING, _of({"type": "file", "file": {"filename": "a.pdf", "file_data": _PDF}}),
          {"prompt_tokens": 90_000, "total_tokens": 90_200}, _usd(1.25, 10, 90_000), _OPENAI),
    _chat("audio that is heard", AUDIO, _of(_SOUND),
          {"prompt_tokens": 700, "total_tokens": 900, "prompt_tokens_details": {"audio_tokens": 600}},
          (100 * 2.5 + 600 * 32 + 200 * 10) / 1e6, _OPENAI),
    _chat("a video by its address", WATCHING, _of(_VIDEO), {"prompt_tokens": 90_000, "cost": _usd(1.25, 10, 90_000)},
          _usd(1.25, 10, 90_000), "https://openrouter.ai/google/gemini-2.5-pro"),
    _chat("audio that is spoken", AUDIO,
          {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "mp3"}},
          {"completion_tokens_details": {"audio_tokens": 150}}, (1000 * 2.5 + 50 * 10 + 150 * 64) / 1e6, _OPENAI),
]  # fmt: skip
