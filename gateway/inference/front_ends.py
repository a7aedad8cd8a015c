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


_OPEN_WEBUI = "open-webui/open-webui: backend/open_webui/config.py"
_LIBRECHAT = "danny-avila/LibreChat: api/app/clients/prompts/titlePrompts.js"
_LIBRECHAT_AGENTS = "danny-avila/agents: src/utils/title.ts"
_LOBECHAT = "lobehub/lobe-chat: packages/prompts/src/chains/"
_HISTORY = "</chat_history>"
_LANGUAGE = "Detect the language used in the following text."

# No background prompt of AnythingLLM's or Home Assistant's was found in their sources, and Cursor's are not public:
# they have no rows.
PROMPTS = (
    Prompt(
        "open-webui", "turn", "### Task:\nGenerate a concise title summarizing the chat history.", _HISTORY, _OPEN_WEBUI
    ),
    Prompt(
        "open-webui",
        "turn",
        "### Task:\nGenerate a concise, 3-5 word title with an emoji summarizing the chat history.",
        _HISTORY,
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "Create a concise, 3-5 word title with an emoji as a title for the chat history, in the given language.",
        _HISTORY,
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "### Task:\nGenerate 1-3 broad tags categorizing the main themes of the chat history,",
        _HISTORY,
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "### Task:\nSuggest 3-5 relevant follow-up questions or prompts that the user might naturally ask next",
        _HISTORY,
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "### Task:\nAnalyze the chat history to determine the necessity of generating search queries,",
        _HISTORY,
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "### Task:\nYou are an autocompletion system. Continue the text in `<text>` based on the **completion type**",
        "#### Output:",
        _OPEN_WEBUI,
    ),
    Prompt(
        "open-webui",
        "turn",
        "Your task is to reflect the speaker's likely facial expression through a fitting emoji.",
        "```",
        _OPEN_WEBUI,
    ),
    Prompt(
        "librechat",
        "turn",
        "Analyze this conversation and provide:\n1. The detected language of the conversation\n2. A concise title in "
        "the detected language",
        "",
        _LIBRECHAT_AGENTS,
    ),
    Prompt(
        "librechat",
        "turn",
        "Provide a concise, 5-word-or-less title for the conversation, using title case conventions. Only return the "
        "title itself.",
        "",
        _LIBRECHAT_AGENTS,
    ),
    Prompt(
        "librechat",
        "system",
        "Write a concise title for this conversation in the given language. Title in 5 Words or Less.",
        "",
        _LIBRECHAT,
    ),
    Prompt("librechat", "system", _LANGUAGE, _LANGUAGE, _LIBRECHAT),
    Prompt(
        "librechat",
        "system",
        "In this environment you have access to a set of tools you can use to generate the conversation title.",
        "",
        _LIBRECHAT,
    ),
    Prompt(
        "lobechat",
        "system",
        "You are a professional conversation summarizer. Generate a concise title that captures the essence of the "
        "conversation.",
        "",
        f"{_LOBECHAT}summaryTitle.ts",
    ),
    Prompt(
        "lobechat",
        "system",
        "你是一名擅长会话的助理，你需要将用户的会话总结为 10 个字以内的标题",
        "",
        "lobehub/lobe-chat: src/chains/summaryTitle.ts",
    ),
    Prompt("lobechat", "system", "你是一名擅长会话标签总结的助理", "", f"{_LOBECHAT}summaryTags.ts"),
    Prompt(
        "lobechat",
        "system",
        "你是一名精通全世界语言的语言专家，你需要识别用户输入的内容，以国际标准 locale 进行输出",
        "",
        f"{_LOBECHAT}langDetect.ts",
    ),
    Prompt(
        "lobechat",
        "system",
        "You are an emoji expert who selects the most appropriate emoji to represent concepts, emotions, or topics.",
        "",
        f"{_LOBECHAT}pickEmoji.ts",
    ),
    Prompt(
        "lobechat",
        "system",
        "You are a sidecar that extracts 0-4 quick-reply suggestions from the last assistant message.",
        "",
        f"{_LOBECHAT}followUpAction.ts",
    ),
    Prompt(
        "lobechat",
        "system",
        "Given the following conversation and a follow-up question, rephrase the follow up question to be a standalone "
        "question,",
        "",
        f"{_LOBECHAT}rewriteQuery.ts",
    ),
    Prompt(
        "n8n",
        "turn",
        "Generate a concise and descriptive title for an AI chat conversation starting with the user's message (quoted "
        "with '>>>') below.",
        "",
        "n8n-io/n8n: packages/cli/src/modules/chat-hub/chat-hub-workflow.service.ts",
    ),
    Prompt(
        "zed",
        "turn",
        "Generate a concise 3-7 word title for this conversation, omitting punctuation. Go straight to the title,",
        "",
        "zed-industries/zed: crates/agent/src/prompts/summarize_thread_prompt.txt",
    ),
    Prompt(
        "nextchat",
        "turn",
        "Please generate a four to five word title summarizing our conversation without any lead-in, punctuation,",
        "",
        "ChatGPTNextWeb/NextChat: app/locales/en.ts",
    ),
    Prompt(
        "chat-ui",
        "system",
        "You are a chat thread titling assistant.\nGoal: Produce a very short, descriptive title",
        "",
        "huggingface/chat-ui: src/lib/server/textGeneration/title.ts",
    ),
    Prompt(
        "dify",
        "turn",
        "You are asked to generate a concise chat title by decomposing the user’s input into two parts:",
        "",
        "langgenius/dify: api/core/llm_generator/prompts.py",
    ),
    Prompt(
        "dify",
        "turn",
        "",
        'following the specified schema:\n["question1","question2","question3"]\n\nquestions:',
        "langgenius/dify: api/core/llm_generator/prompts.py",
    ),
    Prompt(
        "flowise",
        "turn",
        "Given the following conversations: ",
        "Please help me predict the three most likely questions that human would ask and keeping each question short "
        "and concise.",
        "FlowiseAI/Flowise: packages/ui/src/ui-component/extended/FollowUpPrompts.jsx",
    ),
    Prompt(
        "continue",
        "turn",
        "Given the following... please reply with a short summary that is 4-12 words in length, you should summarize",
        "",
        "continuedev/continue: core/util/chatDescriber.ts",
    ),
    Prompt(
        "langchain",
        "turn",
        "Given the following conversation and a follow up question, rephrase the follow up question to be a standalone "
        "question",
        "Standalone question:",
        "langchain-ai/langchain: libs/langchain/langchain/chains/conversational_retrieval/prompts.py",
    ),
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
