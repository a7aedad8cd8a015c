"""Pins the prefixes of a core's specification at start: from messages to the first tokens of the prompts."""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import Protocol

from inference_core.core import Core
from inference_core.engine.pinned_prefixes import PinnedPrefix
from inference_core.errors import InvalidRequestError, PrefixError
from inference_core.loaders.model_path import resolve_model_path
from inference_core.model_spec import PrefixMessage, PrefixSpec
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer


class NamedModel(Protocol):
    """A model's name in a specification, and its file or folder, which its tokeniser is in."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...


def pin_prefixes(core: Core, models: Sequence[NamedModel], prefixes: Iterable[PrefixSpec]) -> None:
    """Pin `prefixes` for those of `models` that they are for (SPEC KV-06); the core computes them once it steps.

    Raises PrefixError for one that cannot be pinned, and ModelFileError for a model without a readable tokeniser.
    """
    tokenizers = cache(lambda path: load_tokenizer(resolve_model_path(path)))
    for prefix in prefixes:
        for model in models:
            if not prefix.is_for(model.name):
                continue
            try:
                tokens = prefix_tokens(tokenizers(model.path), prefix.messages)
                core.pin(PinnedPrefix(name=prefix.name, model=model.name, token_ids=tokens, tenant=prefix.tenant))
            except InvalidRequestError as error:
                raise PrefixError(f"{model.name}: prefix {prefix.name!r}: {error}") from error


def prefix_tokens(tokenizer: Tokenizer, messages: Sequence[PrefixMessage]) -> list[int]:
    """Return the tokens that all chats have in common that begin with `messages`, go on with a user's turn, and use no
    tools. Raises InvalidRequestError for messages that the model's chat template refuses."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    # Two turns without a common beginning: what the template writes before a turn is part of the prefix.
    one, other = (tokenizer.encode_chat([*turns, {"role": "user", "content": text}]) for text in ("A", "0"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]
