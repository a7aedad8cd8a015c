"""What drawing and scheduling see of a grammar; kept apart, as the library behind it is loaded when needed."""

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt


class Matcher(Protocol):
    """See `inference_core.grammar.matcher.GrammarMatcher`."""

    num_words: int

    def accept(self, token_id: int) -> None: ...

    def forced_tokens(self) -> list[int]: ...

    def fill(self, rows: npt.NDArray[np.uint32], drafts: Sequence[int] = ()) -> None: ...


MakeMatcher = Callable[[], Matcher]
