"""What a core's specification asks for besides its models: drafts paired, adapters loaded, prefixes pinned.

Draft and target must have the same vocabulary (SPEC SD-07). Prefixes are made from messages to the first tokens of the
prompts.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import takewhile
from typing import Protocol

from inference_core.engine.core import Core
from inference_core.engine.pinned_prefixes import PinnedPrefix
from inference_core.errors import InvalidRequestError, ModelFileError, PrefixError
from inference_core.loaders.hub_model import PACKAGE_PREFIX, resolve_model_path
from inference_core.model_spec import PrefixMessage, PrefixSpec
from inference_core.tokenization.load_tokenizer import load_tokenizer
from inference_core.tokenization.tokenizer import Tokenizer


class Paired(Protocol):
    """The part of a model's specification that pairing needs, on CPU or device."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def draft(self) -> str | None: ...


def paired_drafts(models: Sequence[Paired]) -> dict[str, str]:
    """Return the draft model's name for each of `models` that has one.

    Raises ModelFileError for a draft model that is not of this core, or of another vocabulary.
    """
    by_name = {model.name: model for model in models}
    drafts: dict[str, str] = {}
    for model in models:
        if model.draft is not None:
            if model.draft not in by_name or model.draft == model.name:
                others = ", ".join(name for name in by_name if name != model.name) or "none"
                raise ModelFileError(
                    f"{model.name}: its draft is {model.draft!r}; it must be another model of this core: {others}"
                )
            _require_one_vocabulary(model, by_name[model.draft])
            drafts[model.name] = model.draft
    return drafts


def _require_one_vocabulary(model: Paired, draft: Paired) -> None:
    paths = [resolve_model_path(each.path) for each in (model, draft)]
    if paths[0] == paths[1]:
        return
    ours, theirs = (load_tokenizer(path).vocabulary for path in paths)
    if ours != theirs:
        differing = sum(ours.get(text) != theirs.get(text) for text in ours.keys() | theirs.keys())
        raise ModelFileError(
            f"{model.name}: its draft {draft.name} has another vocabulary: {differing:,} of {len(ours):,} "
            "tokens differ; a draft model must share its target's tokeniser"
        )


class AdaptedModel(Protocol):
    """A model's name in a specification, and PEFT folders by the names under which to serve them."""

    @property
    def name(self) -> str: ...

    @property
    def adapters(self) -> dict[str, str]: ...


def load_adapters(core: Core, models: Iterable[AdaptedModel]) -> None:
    """Load the adapters of `models`, from folders or `package:NAME/FOLDER`. Raises ModelFileError for a bad one."""
    for model in models:
        for name, folder in model.adapters.items():
            path = str(resolve_model_path(folder)) if folder.startswith(PACKAGE_PREFIX) else folder
            try:
                core.load_adapter(model.name, name, path, listed=True)
            except InvalidRequestError as error:
                raise ModelFileError(f"{model.name}: {error}") from error


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
    first, second = (tokenizer.encode_chat([*turns, {"role": "user", "content": text}]) for text in ("A", "0"))
    return [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))]
