"""Recognise the housekeeping of chat front ends: a title, tags, follow-up questions or search queries for a
conversation, which its user never asked for.

Front ends send these as ordinary requests, three or four for each turn of a user, with the conversation in them: only
their own wording tells them from a user's request. Known prompts are rows with their source, matched as a whole
beginning and, where the prompt has one, end, never by a search in the conversation that stands between. Others are
known by what they ask: the text around a conversation asks for one of those things for that conversation, and for
nothing else. A request that quotes such a prompt, goes on after it, or has its headings alone is none.
"""

import re
from collections.abc import Sequence
from typing import Literal

import msgspec

from tiers.tier import ChatMessage

# What is recognised by what it asks has this in place of a client's name.
ANY_FRONT_END = "front-end"


class Prompt(msgspec.Struct, frozen=True):
    """One background prompt of a front end.

    `place`: the message that has it, the last one or a system message before the user's. `begins`: the text that this
    message begins with, "" where the conversation is first; `ends`: what it ends with, "" where that is last.
    `source`: repository and path.
    """

    client: str
    place: Literal["turn", "system"]
    begins: str
    ends: str
    source: str


_HISTORY = "</chat_history>"
_LANGUAGE = "Detect the language used in the following text."
_OPEN_WEBUI = "open-webui/open-webui: backend/open_webui/config.py"
_TITLES_OF_LIBRECHAT = "danny-avila/LibreChat: api/app/clients/prompts/titlePrompts.js"
_LOBECHAT = "lobehub/lobe-chat: packages/prompts/src/chains/"
_CHAT_UI = "huggingface/chat-ui: src/lib/server/textGeneration/title.ts"
_DIFY = "langgenius/dify: api/core/llm_generator/prompts.py"
_SEARCH = (
    "You are tasked with generating web search queries. Give me an appropriate query to answer my question for google "
    "search."
)

# Client, place, source, what the prompt ends with, and what it begins with, also in older versions. No background
# prompt of AnythingLLM's or Home Assistant's was found in their sources, and Cursor's are not public: no rows.
_ROWS: tuple[tuple[str, Literal["turn", "system"], str, str, tuple[str, ...]], ...] = (
    (
        "open-webui",
        "turn",
        _OPEN_WEBUI,
        _HISTORY,
        (
            "### Task:\nGenerate a concise title summarizing the chat history.",
            "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
            "Create a concise, 3-5 word title with an emoji as a title for the chat history, in the given language.",
            "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history",
            "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next",
            "### Task:\nAnalyze the chat history to determine the necessity of generating search queries,",
        ),
    ),
    (
        "open-webui",
        "turn",
        _OPEN_WEBUI,
        "#### Output:",
        ("### Task:\nYou are an autocompletion system. Continue the text in `<text>` based on the **completion",),
    ),
    (
        "open-webui",
        "turn",
        _OPEN_WEBUI,
        "```",
        ("Your task is to reflect the speaker's likely facial expression through a fitting emoji.",),
    ),
    ("open-webui", "turn", _OPEN_WEBUI, "", (_SEARCH,)),
    (
        "librechat",
        "turn",
        "danny-avila/agents: src/utils/title.ts",
        "",
        (
            "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title",
            "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return "
            "the title itself.",
        ),
    ),
    (
        "librechat",
        "system",
        _TITLES_OF_LIBRECHAT,
        "",
        (
            "Write a concise title for this conversation in the given language. Title in 5 Words or Less.",
            "In this environment you have access to a set of tools you can use to generate the conversation title.",
        ),
    ),
    ("librechat", "system", _TITLES_OF_LIBRECHAT, _LANGUAGE, (_LANGUAGE,)),
    (
        "lobechat",
        "system",
        f"{_LOBECHAT}summaryTitle.ts",
        "",
        (
            "You are a professional conversation summarizer. Generate a concise title that captures the essence of the "
            "conversation.",
            "你是一名擅长会话的助理，你需要将用户的会话总结为 10 个字以内的标题",
        ),
    ),
    ("lobechat", "system", f"{_LOBECHAT}summaryTags.ts", "", ("你是一名擅长会话标签总结的助理",)),
    (
        "lobechat",
        "system",
        f"{_LOBECHAT}langDetect.ts",
        "",
        ("你是一名精通全世界语言的语言专家，你需要识别用户输入的内容，以国际标准 locale 进行输出",),
    ),
    (
        "lobechat",
        "system",
        f"{_LOBECHAT}pickEmoji.ts",
        "",
        ("You are an emoji expert who selects the most appropriate emoji to represent concepts, emotions, or topics.",),
    ),
    (
        "lobechat",
        "system",
        f"{_LOBECHAT}followUpAction.ts",
        "",
        ("You are a sidecar that extracts 0-4 quick-reply suggestions from the last assistant message.",),
    ),
    (
        "lobechat",
        "system",
        f"{_LOBECHAT}rewriteQuery.ts",
        "",
        (
            "Given the following conversation and a follow-up question, rephrase the follow up question to be a "
            "standalone question,",
        ),
    ),
    (
        "n8n",
        "turn",
        "n8n-io/n8n: packages/cli/src/modules/chat-hub/chat-hub-workflow.service.ts",
        "",
        ("Generate a concise and descriptive title for an AI chat conversation starting with the user's message",),
    ),
    (
        "zed",
        "turn",
        "zed-industries/zed: crates/agent/src/prompts/summarize_thread_prompt.txt",
        "",
        ("Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to the title,",),
    ),
    (
        "nextchat",
        "turn",
        "ChatGPTNextWeb/NextChat: app/locales/en.ts",
        "",
        ("Please generate a four to five word title summarizing our conversation without any lead-in, punctuation,",),
    ),
    (
        "chat-ui",
        "system",
        _CHAT_UI,
        "",
        (
            "You are a chat thread titling assistant.\nGoal: Produce a very short, descriptive title",
            "You are a summarization AI. Summarize the user's request into a single short sentence of four words",
        ),
    ),
    ("chat-ui", "system", "huggingface/chat-ui: src/lib/server/websearch/generateQuery.ts", "", (_SEARCH,)),
    (
        "dify",
        "turn",
        _DIFY,
        "",
        (
            "You are asked to generate a concise chat title by decomposing the user’s input into two parts:",
            'You need to decompose the user\'s input into "subject" and "intention" in order to accurately figure out',
        ),
    ),
    (
        "dify",
        "turn",
        _DIFY,
        'following the specified schema:\n["question1","question2","question3"]\n\nquestions:',
        ("",),
    ),
    (
        "flowise",
        "turn",
        "FlowiseAI/Flowise: packages/ui/src/ui-component/extended/FollowUpPrompts.jsx",
        "Please help me predict the three most likely questions that human would ask and keeping each question short "
        "and concise.",
        ("Given the following conversations: ",),
    ),
    (
        "continue",
        "turn",
        "continuedev/continue: core/util/chatDescriber.ts",
        "",
        (
            "Given the following... please reply with a title for the chat that is 3-4 words in length,",
            "Given the following... please reply with a short summary that is 4-12 words in length, you should",
        ),
    ),
    (
        "langchain",
        "turn",
        "langchain-ai/langchain: libs/langchain/langchain/chains/conversational_retrieval/prompts.py",
        "Standalone question:",
        (
            "Given the following conversation and a follow up question, rephrase the follow up question to be a "
            "standalone question",
        ),
    ),
)
PROMPTS = tuple(
    Prompt(client, place, begin, ends, source) for client, place, source, ends, begins in _ROWS for begin in begins
)
_BEGIN_TURNS = tuple(one.begins for one in PROMPTS if one.place == "turn" and one.begins)
_END_TURNS = tuple(one.ends for one in PROMPTS if not one.begins)
_BEGIN_SYSTEMS = tuple(one.begins for one in PROMPTS if one.place == "system")


def front_end_of(messages: Sequence[ChatMessage]) -> str | None:
    """Return the front end whose housekeeping a request is, `ANY_FRONT_END` where only what it asks says so, and None
    for every other request. The beginnings and ends of two messages are looked at."""
    last = messages[-1] if messages else None
    if last is None or last.role != "user":
        return None
    if last.content.startswith(_BEGIN_TURNS) or last.content[-WINDOW:].rstrip().endswith(_END_TURNS):
        return _client_of("turn", last.content)
    first = messages[0]
    if first.role == "system" and first.content.startswith(_BEGIN_SYSTEMS):
        return _client_of("system", first.content)
    return ANY_FRONT_END if asks_for_housekeeping(last.content) else None


def _client_of(message: str, content: str) -> str | None:
    end = content[-WINDOW:].rstrip()
    for one in PROMPTS:
        if one.place == message and content.startswith(one.begins) and end.endswith(one.ends):
            return one.client
    return None


# Characters at either end of a turn that are looked at, and of the text around a conversation.
WINDOW, MOST_ASKED = 4096, 3000
# Where a conversation begins: an element, a heading of its own, or lines of both speakers.
_OPENS = re.compile(
    r"<(chat_?history|conversation|messages|transcript|dialogue|chat)>|"
    r"^(?:#{1,6} |\*\*)?(?:chat history|conversation(?: history)?|transcript|messages|dialogue):?(?:\*\*)?:?[ \t]*$",
    re.IGNORECASE | re.MULTILINE,
)
_SPEAKER = re.compile(r"^\W{0,4}(user|human|assistant|ai|bot|model)\W{0,4}:", re.IGNORECASE | re.MULTILINE)
# Most turns lack a word of either kind and need only these searches.
_THINGS = ("title", "tag", "emoji", "follow", "quer")
_CONVERSATIONS = ("chat", "conversation", "dialogue", "discussion", "messages", "transcript", "thread", "session")
# What is asked for, of what. Bounded, so that the search is linear.
_THING = r"\b(?:title|tags?|emoji|follow-?ups?|(?:search )?quer(?:y|ies))\b"
_OF_WHAT = r"\b(?:chat|conversation|dialogue|discussion|messages|transcript|thread|session)\b"
_ASKS = re.compile(
    r"\b(?:generate|create|write|provide|suggest|propose|give|produce|come up with|summari[sz]e)\b"
    rf"[^.!?\n]{{0,80}}?(?:{_THING}[^!?\n]{{0,160}}?{_OF_WHAT}|{_OF_WHAT}[^.!?\n]{{0,80}}?{_THING})",
    re.IGNORECASE,
)
_KEYS = re.compile(r"\{\s{0,8}\"(?:title|tags|follow_?ups|queries|emoji)\"\s{0,4}:")
# What asks for something else as well.
_ASKS_MORE = re.compile(
    r"\b(?:prove|derive|solve|implement|debug|refactor|translate|calculate|compute|essay|report|article|program|plan|"
    r"(?:write|fix|explain|give) (?:the |some |any )?code|explain (?:how|why|what|the)|evaluate|critique|review|"
    r"compare|(?:answer|reply to|respond to) (?:the|its|every|each|all)|in detail|step by step|afterwards|after that|"
    r"then (?:write|give|answer|list|say|do|make))\b",
    re.IGNORECASE,
)


def asks_for_housekeeping(content: str) -> bool:
    """Return whether a turn has a conversation in it, and the text around that asks for a title, tags, follow-up
    questions or search queries for it, and for nothing else."""
    head = content[:WINDOW]
    lower = head.lower()
    if not (any(word in lower for word in _THINGS) and any(word in lower for word in _CONVERSATIONS)):
        return False
    opening = _OPENS.search(head)
    if opening is None:
        speakers = list(_SPEAKER.finditer(head))
        if len({one[1].lower() in ("user", "human") for one in speakers}) < 2:
            return False
        before, after = head[: speakers[0].start()], ""
    else:
        before, after = head[: opening.start()], _after(content, opening[1])
    around = f"{before}\n{after}"
    if len(around) > MOST_ASKED or _ASKS_MORE.search(around):
        return False
    return _ASKS.search(around) is not None or _KEYS.search(around) is not None


def _after(content: str, element: str | None) -> str:
    """Return what follows the conversation: after the end of its element, else nothing."""
    if element is None:
        return ""
    tail = content[-WINDOW:]
    end = f"</{element.lower()}>"
    place = tail.lower().rfind(end)
    return tail[place + len(end) :] if place >= 0 else tail
