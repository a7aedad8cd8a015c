"""What a request may ask for beyond tokens at the list's price, and tokens of other prices."""

from tests.gateway.bills.row import Row, Server, chat, message, response, words

OPENAI = Server("openai", "openai", "gpt-5")
CLAUDE = Server("claude", "anthropic", "claude-sonnet-4-5")
_OPENAI_PRICES = "https://platform.openai.com/docs/pricing"
_CLAUDE_PRICES = "https://docs.claude.com/en/docs/about-claude/pricing"
_ASKED = [{"role": "user", "content": words(1000)}]
_CHAT_USAGE = {"prompt_tokens": 1000, "completion_tokens": 200, "total_tokens": 1200}
_RESPONSE_USAGE = {"input_tokens": 1000, "output_tokens": 200, "total_tokens": 1200}

ROWS = [
    Row(
        "a chat of OpenAI, without extras",
        OPENAI,
        "chat/completions",
        {"messages": _ASKED, "max_tokens": 500},
        chat(_CHAT_USAGE),
        (1000 * 1.25 + 200 * 10) / 1e6,
        _OPENAI_PRICES,
    ),
    Row(
        "a response of OpenAI, without extras, streamed",
        OPENAI,
        "responses",
        {"input": words(1000), "max_output_tokens": 500, "stream": True},
        response(_RESPONSE_USAGE),
        (1000 * 1.25 + 200 * 10) / 1e6,
        _OPENAI_PRICES,
    ),
    Row(
        "a message of Anthropic, without extras, streamed",
        CLAUDE,
        "messages",
        {"messages": _ASKED, "max_tokens": 500, "stream": True},
        message({"input_tokens": 1000, "output_tokens": 200}),
        (1000 * 3 + 200 * 15) / 1e6,
        _CLAUDE_PRICES,
    ),
]
