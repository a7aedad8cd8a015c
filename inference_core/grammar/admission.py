"""Requests whose grammar is being compiled, on a thread of its own, so that no step waits for it."""

import logging
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from inference_core.errors import CoreError, InvalidRequestError
from inference_core.grammar.matcher_seam import MakeMatcher
from inference_core.loaders.model_path import resolve_model_path
from inference_core.protocol import AddRequest, Grammar, ModelInfo

if TYPE_CHECKING:
    from inference_core.grammar.compiler import GrammarCompiler
    from inference_core.grammar.vocabulary import Vocabulary

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Compiled:
    """A request that can be admitted: the result of `matchers` makes one per choice, or raises `InvalidRequestError`.

    `aborted`: choices that were given up meanwhile.
    """

    request: AddRequest
    matchers: Future[MakeMatcher]
    aborted: list[int] = field(default_factory=list)


class GrammarAdmission:
    """Compiles the grammars of requests for the models of a core. One thread, started when first needed.

    `vocabulary_of` gives a model's tokens; it is called on that thread, once per model. `eos_token_ids` by model.
    """

    def __init__(
        self, vocabulary_of: "Callable[[ModelInfo], Vocabulary]", eos_token_ids: dict[str, tuple[int, ...]]
    ) -> None:
        self._vocabulary_of = vocabulary_of
        self._eos_token_ids = eos_token_ids
        self._compilers: dict[str, GrammarCompiler] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: dict[str, Compiled] = {}

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, request: AddRequest, info: ModelInfo, grammar: Grammar) -> None:
        """Take a request until its grammar is compiled; one whose grammar is known is ready at once."""
        compiler = self._compilers.get(info.name)
        known = None if compiler is None else compiler.find(grammar)
        ready: Future[MakeMatcher]
        if known is not None:
            ready = Future()
            ready.set_result(known)
        else:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, thread_name_prefix="aio-grammars")
            ready = self._pool.submit(self._compile, info, grammar)
        self._waiting[request.request_id] = Compiled(request, ready)

    def take(self, patience: float = 0.0) -> list[Compiled]:
        """Those that are compiled, or cannot be, in the order they came; waits up to `patience` seconds for one."""
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
            self._waiting.pop(request_id).matchers.cancel()

    def _compile(self, info: ModelInfo, grammar: Grammar) -> MakeMatcher:
        try:
            return self._compiler(info, grammar).compile(grammar)
        except CoreError:
            raise
        except BaseException as error:  # The library's own panics are no Exception.
            logger.exception("a grammar of kind %s broke the compiler", grammar.kind)
            raise CoreError(f"{grammar.param} could not be compiled: the compiler failed, which is logged") from error

    def _compiler(self, info: ModelInfo, grammar: Grammar) -> "GrammarCompiler":
        known = self._compilers.get(info.name)
        if known is None:
            known = self._compilers[info.name] = self._make_compiler(info, grammar)
        return known

    def _make_compiler(self, info: ModelInfo, grammar: Grammar) -> "GrammarCompiler":
        # Loaded with the first grammar: cores without any start faster, and run where the library is not installed.
        try:
            from inference_core.grammar.compiler import GrammarCompiler
            from inference_core.grammar.vocabulary import token_trie
        except ImportError as error:
            raise InvalidRequestError(
                f"{grammar.param}: this core was installed without llguidance, so it follows no grammars: {error}",
                grammar.param,
            ) from error
        ends = self._eos_token_ids[info.name]
        if not ends:
            raise InvalidRequestError(
                f"{grammar.param}: {info.name} names no token that ends an answer, so it follows no grammars",
                grammar.param,
            )
        return GrammarCompiler(token_trie(self._vocabulary_of(info), info.vocab_size, ends))


def vocabulary_of_file(info: ModelInfo) -> "Vocabulary":
    """The tokeniser that comes with a model. Raises `ModelFileError`, and `InvalidRequestError` if it has none."""
    if not info.model_path:
        raise InvalidRequestError(f"{info.name} has no tokeniser, so it follows no grammars", "response_format")
    from inference_core.tokenization.loading import load_tokenizer

    return load_tokenizer(resolve_model_path(info.model_path))
