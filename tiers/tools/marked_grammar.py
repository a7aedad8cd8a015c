"""Lark rules for arguments that stand one by one between marks, as Qwen3-Coder's and GLM's models write them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

from inference_core.grammar.vocabulary import JSON_STYLE
from tiers.tools.named_dialect import ArgumentMarks


def marked_arguments(
    marks: ArgumentMarks, schema: Mapping[str, Any], rule: str, markup: Callable[[str], str]
) -> tuple[str, list[str]]:
    """Return the expression for the arguments of a schema, and the rules that it names, each beginning with `rule`.

    Properties have the order of the schema; texts between marks follow its `enum` and `const`, and are free otherwise.
    `markup`: writes a mark as the vocabulary has it.
    """
    properties = schema.get("properties")
    stated: dict[str, Any] = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    needed = set(required) if isinstance(required, list) else set()
    rules, whole, parts = list[str](), dict[str, str](), dict[str, str]()
    for number, (key, value) in enumerate(stated.items()):
        name = f"{rule}_{number}"
        rules.append(f"{name}: {_argument(marks, key, value, schema, f'{name}_v', markup, rules)}")
        whole[key], parts[key] = name, f"({markup(marks.separator)} {name})" if marks.separator else name
    if not marks.separator:
        return " ".join(whole[key] if key in needed else f"{whole[key]}?" for key in stated), rules
    first = [key for key in stated if key in needed] or list(stated)[:1]
    others = [key for key in stated if key not in first]
    listed = " ".join([whole[key] if place == 0 else parts[key] for place, key in enumerate(first)])
    more = " ".join(f"{parts[key]}?" for key in others)
    return (f"{listed} {more}" if needed or not stated else f"({listed} {more})?"), rules


def _argument(
    marks: ArgumentMarks,
    key: str,
    value: Any,
    schema: Mapping[str, Any],
    name: str,
    markup: Callable[[str], str],
    rules: list[str],
) -> str:
    stated = value if isinstance(value, dict) else {}
    lead = f"{markup(marks.key_open)} {json.dumps(key, ensure_ascii=False)}"
    choices: list[Any] = [stated["const"]] if "const" in stated else stated.get("enum") or []
    is_text = stated.get("type") == "string" or (bool(choices) and all(isinstance(one, str) for one in choices))
    mid, close = (marks.string_mid, marks.string_close) if is_text else (marks.other_mid, marks.other_close)
    if is_text and marks.string_form == "raw":
        if choices:
            texts = " | ".join(json.dumps(one, ensure_ascii=False) for one in choices)
            return f"{lead} {markup(mid)} ({texts}) {markup(close)}"
        # Lazy: the text ends where its mark begins.
        rules.append(f"{name}[lazy]: RAW {json.dumps(close, ensure_ascii=False)}")
        return f"{lead} {markup(mid)} {name}"
    # A property may refer to the schema's own definitions.
    own = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    rules.append(f"{name}: %json {json.dumps({**own, **stated, 'x-guidance': JSON_STYLE})}")
    return f"{lead} {markup(mid)} {name} {markup(close)}"
