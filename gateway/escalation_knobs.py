"""The live knobs of escalation: which stages may hand an answer to the next tier, and how long a stream is held."""

from typing import Annotated

import msgspec
from msgspec import Meta

from classifier.opening import FIRST_TOKENS


class EscalationKnobs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where a tier has no probes none of them does anything.

    `stage_2`: the hidden state of the prompt may escalate right after prefill. `stage_3`: so may log-probability,
    entropy and margin of the tokens: of a stream's opening, of a whole answer's all. `hold_tokens`: how many tokens of
    a stream are held back at most until that is decided; 0 never holds, and stage 3 then judges whole answers
    only. A probe reads an opening of `FIRST_TOKENS` tokens, so holding more would tell it nothing.
    """

    stage_2: bool = True
    stage_3: bool = True
    hold_tokens: Annotated[int, Meta(ge=0, le=FIRST_TOKENS)] = FIRST_TOKENS
