"""A tokeniser for harmony: every byte is a token, with the format's control tokens and a short template of its form."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

CONTROLS = (
    "<|startoftext|>", "<|endoftext|>", "<|return|>", "<|constrain|>", "<|channel|>", "<|start|>", "<|end|>",
    "<|message|>", "<|call|>",
)  # fmt: skip
SIZE = 256 + len(CONTROLS)
# As gpt-oss's own one: thoughts only before calls, one call in a message, results by the name of the last call.
TEMPLATE = """\
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort or "medium") + "<|end|>" }}
{%- if tools %}
    {{- "<|start|>developer<|message|># Tools\\n" }}
    {%- for tool in tools %}{{- tool.function.name + " " + tool.function.parameters|tojson + "\\n" }}{%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(call=none) %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls %}
        {%- if message.content and message.thinking %}{{- raise_exception("content and thinking") }}{%- endif %}
        {%- if message.thinking %}
            {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary json<|message|>" }}
        {{- call.arguments|tojson + "<|call|>" }}
        {%- set last.call = call.name %}
    {%- elif message.role == "assistant" %}
        {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
    {%- elif message.role == "tool" %}
        {{- "<|start|>functions." + last.call + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content|tojson + "<|end|>" }}
    {%- else %}
        {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- "<|start|>assistant" }}{%- endif %}"""


def write_harmony_tokenizer(folder: Path, template: str = TEMPLATE) -> Path:
    """tokenizer.json, tokenizer_config.json and chat_template.jinja; the end token is `<|return|>` alone."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROLS])
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": "<|return|>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(template)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"eos_token_id": 256 + CONTROLS.index("<|return|>")}))
    return folder
