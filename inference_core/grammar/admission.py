"""Requests whose grammar is being compiled, so that no step waits for it."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field

from inference_core.errors import InvalidRequestError
from inference_core.grammar.vocabulary import Vocabulary
from inference_core.grammar.workers import GrammarWorkers
from inference_core.loaders.model_path import resolve_model_path
from inference_core.protocol import AddRequest, Grammar, ModelInfo
from inference_core.step_plan import MatcherFactory


@dataclass(slots=True)
class Compiled:
    """A request that can be admitted: the result of `matchers` makes one per choice, or raises `CoreError`.

    `aborted`: choices that were given up meanwhile.
    """

    request: AddRequest
    matchers: Future[MatcherFactory]
    aborted: list[int] = field(default_factory=list)


class GrammarAdmission:
    """Keeps the requests of a core until their grammars are compiled; tenants are told apart by the requests' salts.

    `vocabulary_of` gives a model's tokens; it is called on a thread of its own, once per model. `eos_token_ids` by
    model.
    """

    def __init__(
        self, vocabulary_of: Callable[[ModelInfo], Vocabulary], eos_token_ids: dict[str, tuple[int, ...]]
    ) -> None:
        self._workers = GrammarWorkers(vocabulary_of, eos_token_ids)
        self._waiting: dict[str, Compiled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: AddRequest, info: ModelInfo, grammar: Grammar) -> None:
        """Take a request until its grammar is compiled; one whose grammar is known is ready at once.

        Raises as `GrammarWorkers.compile` does.
        """
        ready = self._workers.compile(info, grammar, request.salt)
        self._waiting[request.request_id] = Compiled(request, ready)

    def take(self, patience: float = 0.0) -> list[Compiled]:
        """Those that are compiled, or cannot be, in the order they came; waits up to `patience` seconds for one."""
        self._workers.bound_memory()
        if not self._waiting:
            return []
        if patience > 0:
            wait([c.matchers for c in self._waiting.values()], patience, FIRST_COMPLETED)
        ready = [c for c in self._waiting.values() if c.matchers.done()]
        for compiled in ready:
            del self._waiting[compiled.request.request_id]
        return ready

    def abort(self, request_id: str, index: int | None) -> None:
        """Forget a request that is not admitted yet, or remember that a choice of it is to be aborted."""
        if index is not None:
            self._waiting[request_id].aborted.append(index)
        else:
            self._workers.cancel(self._waiting.pop(request_id).matchers)

    def close(self) -> None:
        """End what is compiled and all processes of grammars; nothing is waited for."""
        self._waiting.clear()
        self._workers.close()


def vocabulary_of_file(info: ModelInfo) -> Vocabulary:
    """The tokeniser that comes with a model. Raises `ModelFileError`, and `InvalidRequestError` if it has none."""
    if not info.model_path:
        raise InvalidRequestError(f"{info.name} has no tokeniser, so it follows no grammars", "response_format")
    from inference_core.tokenization.load_tokenizer import load_tokenizer

    return load_tokenizer(resolve_model_path(info.model_path))
