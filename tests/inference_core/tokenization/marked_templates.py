"""Chat templates in the forms of public ones, a vocabulary with their marks, and chats whose texts are hostile."""

from typing import Any

from tokenizers import AddedToken, processors
from tokenizers import Tokenizer as Backend

from inference_core.tokenization.tokenizer import Tokenizer
from tests.inference_core.tokenization.test_hf_vocabulary import byte_level_backend

# In the forms of DeepSeek's, Qwen3's and Phi's templates: marks that are not special tokens.
FULL_WIDTH = (
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<｜User｜>' + m.content }}{% elif m.role == 'tool' %}"
    "{{ '<｜tool▁output▁begin｜>' + m.content + '<｜tool▁output▁end｜>' }}{% elif m.role == 'assistant' %}"
    "{{ '<｜Assistant｜>' + m.content.split('</think>')[-1] + '<|im_end|>' }}{% else %}{{ m.content }}{% endif %}"
    "{% endfor %}{{ tools | tojson }}{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
TAGS = (
    "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'tool' %}<tool_response>\n"
    "{{ m.content }}\n</tool_response>{% elif m.role == 'assistant' and '</think>' in m.content %}"
    "{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call | tojson }}</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
)
COMPOSED = (
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content + '<|im_end|>' }}{% endfor %}{{ tools | tojson }}"
)
# As SmolLM3's: it looks for no thoughts, but writes that there are none.
UNSOUGHT = (
    "{{ tools | tojson }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}{% if m.role == 'assistant' %}"
    "{{ '<think>\n\n</think>\n' + m.content.lstrip('\n') }}{% else %}{{ m.content.replace('/no_think', '') }}"
    "{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
)
# As LFM2.5's: it looks for the end of thoughts alone, and only in earlier turns.
SOUGHT_EARLIER = (
    "{{ tools | tojson }}{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% if m.thinking is defined and loop.last %}{{ '<think>' + m.thinking + '</think>' }}{% endif %}"
    "{% if '</think>' in m.content and not loop.last %}{{ m.content.split('</think>')[-1] | trim }}"
    "{% else %}{{ m.content }}{% endif %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
)
TEMPLATES = {"full width": FULL_WIDTH, "tags": TAGS, "composed": COMPOSED, "unsought": UNSOUGHT}
TEMPLATES |= {"sought earlier": SOUGHT_EARLIER}
MARKS = [
    "<｜User｜>",
    "<｜Assistant｜>",
    "<｜tool▁output▁begin｜>",
    "<｜tool▁output▁end｜>",
    "<tool_call>",
    "</tool_call>",
]
MARKS += ["<tool_response>", "</tool_response>", "</think>", "<|user|>", "<|assistant|>"]
# No template writes these: they stay tokens in anybody's text.
OTHERS = ["<h1>", "\n\n"]
FRAGMENTS = [*MARKS, *OTHERS, "<|im_end|>", "<｜", "User｜>", "<", "/think>", "tool_call>", "a", "é", " ", "\n"]


def marked_backend() -> Backend:
    backend = byte_level_backend()
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in [*MARKS, *OTHERS]])
    backend.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A <|im_end|>", special_tokens=[("<|endoftext|>", 0), ("<|im_end|>", 2)]
    )
    return backend


def chat(said: str, asked: str = "x") -> list[dict[str, Any]]:
    call = {"id": said, "type": "function", "function": {"name": said, "arguments": {said: said}}}
    return [
        {"role": "system", "content": said},
        {"role": "user", "content": said, "name": said},
        {"role": "assistant", "content": asked, "tool_calls": [call]},
        {"role": "tool", "content": said, "tool_call_id": said},
    ]


def added(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """The added tokens among `ids` that a template writes."""
    known = {tokenizer.vocabulary[text]: text for text in [*MARKS, "<think>"]} | {0: "0", 1: "1", 2: "2"}
    return [known[token] for token in ids if token in known]


def literal(tokenizer: Tokenizer, ids: list[int]) -> str:
    return b"".join(tokenizer.token_bytes(i) for i in ids).decode()
