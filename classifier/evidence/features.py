"""The evidence of an answer as a fixed vector: token uncertainty, length, form, agreement (RT-11).

Text alone is enough: values that a server does not report are marked as unknown. Quantiles of token uncertainty over
the whole answer rank right answers better than means do (Gupta et al. 2024, "Language model cascades: token-level
uncertainty and beyond"); agreement of samples: Wang et al. 2023, "Self-consistency".
"""

import math
import re
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from inference_core.tokenization.prompt_size import FITTED_CHARS_PER_TOKEN

Float = npt.NDArray[np.float32]

EVIDENCE_NAMES = (
    "uncertainty_known",
    "uncertainty_p10",
    "uncertainty_p50",
    "uncertainty_p90",
    "uncertainty_worst",
    "log_length",
    "is_empty",
    "cut_off",
    "hedges",
    "refusal",
    "ends_mid_sentence",
    "repetition",
    "code_unclosed",
    "json_invalid",
    "has_number",
    "agreement_known",
    "agreement",
)
"""What each number of the vector is; models fitted on other names are refused."""

# In a longer text only the start and the end are searched for phrases and repetition.
MAX_CHARS = 6_000
NGRAM = 4
MAX_HEDGES = 4

_HEDGE = re.compile(
    r"\b(?:i(?:'m| am) not (?:entirely |completely |quite )?(?:sure|certain)|i think|i believe|i guess|it seems"
    r"|it is (?:possible|unclear)|probably|possibly|perhaps|might be|may be|not enough information|hard to say"
    r"|wait,|actually,|let me (?:re-?check|reconsider|try again)"
    r"|vielleicht|vermutlich|ich (?:glaube|vermute)|nicht sicher|peut-être|je (?:pense|crois)|probablement|pas sûre?"
    r"|quizás?|tal vez|creo que|probablemente|no estoy segur[oa]|talvez|acho que|forse|credo che)(?!\w)"
    r"|也许|可能是|我不确定|たぶん|かもしれ|возможно|наверное",
    re.IGNORECASE,
)
_REFUSAL = re.compile(
    r"\b(?:i(?:'m| am) sorry|i apologi[sz]e|i (?:can(?:no|')t|am (?:not able|unable) to|do(?:n't| not) (?:know|have))"
    r"|as an? (?:ai|language model)|unable to (?:answer|help|assist|provide)"
    r"|es tut mir leid|ich kann (?:leider |das )?nicht|je suis désolée?|je ne (?:peux|sais) pas"
    r"|lo siento|no puedo|não posso|mi dispiace|non posso)(?!\w)"
    r"|抱歉|对不起|我无法|申し訳|できません|извините|я не могу",
    re.IGNORECASE,
)
_WORD = re.compile(r"\w+")
_NUMBER = re.compile(r"\d")
# A text with fewer words has no sentence.
_SENTENCE_WORDS = 8


def evidence_features(
    text: str,
    finish_reason: str | None = None,
    uncertainty: Sequence[float] = (),
    agreement: float | None = None,
) -> Float:
    """Return the evidence of an answer, float32 [len(EVIDENCE_NAMES)], finite for any text.

    `uncertainty`: of each token of the answer in nats, at least 0: the entropy of its distribution if the model reports
    it, else its negative log-probability; empty if unknown. `agreement`: in [0, 1], of another answer's final result
    with this one's; None without another answer.
    """
    shown = text if len(text) <= MAX_CHARS else text[: MAX_CHARS // 2] + text[-MAX_CHARS // 2 :]
    last_line = shown.rstrip().rpartition("\n")[2]
    values = (
        *_quantiles(uncertainty),
        math.log1p(len(text) / FITTED_CHARS_PER_TOKEN),
        not text.strip(),
        finish_reason == "length",
        min(len(_HEDGE.findall(shown)), MAX_HEDGES),
        _REFUSAL.search(shown) is not None,
        _ends_mid_sentence(last_line),
        _repetition(shown),
        text.count("```") % 2,
        _is_broken_json(text),
        _NUMBER.search(last_line) is not None,
        agreement is not None,
        agreement or 0.0,
    )
    return np.asarray(values, np.float32)


def with_agreement(evidence: Float, agreement: npt.NDArray[np.floating] | float) -> Float:
    """Return `evidence` [..., e] with the known `agreement` [...] of another answer."""
    known = evidence.copy()
    known[..., EVIDENCE_NAMES.index("agreement_known")] = 1.0
    known[..., EVIDENCE_NAMES.index("agreement")] = agreement
    return known


def _quantiles(uncertainty: Sequence[float]) -> tuple[float, ...]:
    """Return a flag, the 10th, 50th and 90th percentile and the maximum, on a log scale, because few tokens are very
    uncertain."""
    values = np.nan_to_num(np.asarray(uncertainty, np.float64), nan=0.0, posinf=1e6, neginf=0.0)
    if not len(values):
        return (0.0,) * 5
    found = np.quantile(np.clip(values, 0.0, 1e6), (0.1, 0.5, 0.9, 1.0))
    return (1.0, *np.log1p(found).tolist())


def _ends_mid_sentence(last_line: str) -> bool:
    return len(_WORD.findall(last_line)) >= _SENTENCE_WORDS and (last_line[-1].isalpha() or last_line[-1] in ",;:-(")


def _repetition(text: str) -> float:
    """Return the share of `NGRAM`-word runs that occurred before."""
    words = _WORD.findall(text.casefold())
    runs = list(zip(*(words[place:] for place in range(NGRAM)), strict=False))
    return 1.0 - len(set(runs)) / len(runs) if runs else 0.0


def _is_broken_json(text: str) -> bool:
    """Return whether a text looks like a JSON object or array but does not parse."""
    stripped = text.strip()
    if not stripped.startswith(("{", '["', "[{")):
        return False
    try:
        msgspec.json.decode(stripped)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return True
    return False
