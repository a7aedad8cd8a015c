"""Which models of a core draft for which, checked: a draft's token ids must mean what its target's do (SPEC SD-07)."""

from collections.abc import Sequence
from typing import Protocol

from inference_core.errors import ModelFileError
from inference_core.loaders.model_path import resolve_model_path
from inference_core.tokenization.load_tokenizer import load_tokenizer


class Paired(Protocol):
    """What a specification says of a model, wherever it is computed."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def draft(self) -> str | None: ...


def paired_drafts(models: Sequence[Paired]) -> dict[str, str]:
    """The draft of each of a core's `models` that has one, by name.

    Raises ModelFileError for one that is not of this core, or of another vocabulary.
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
