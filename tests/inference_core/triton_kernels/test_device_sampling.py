"""The device draws the tokens of `reference_sampler`, bit by bit, and so from exactly its law (SPEC GW-04)."""

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

from inference_core.device.sampling import (
    EditTables,
    LogProbabilities,
    is_penalised,
    row_bias,
    row_uses,
)
from inference_core.protocol import SamplingParams
from inference_core.sampling.reference_sampler import distribution, sample_row, token_logprob, weights_of
from inference_core.step_plan import SampleSpec
from inference_core.triton_kernels import token_draws
from inference_core.triton_kernels.logits import edit_logits
from inference_core.triton_kernels.token_draws import draw_tokens, row_totals
from tests.inference_core.triton_kernels.draws import draw_params

VOCABULARY = 2500


def spec(seed: int = 0, position: int | None = None, **given: Any) -> SampleSpec:
    prompt, output = given.pop("prompt", []), given.pop("output", [])
    eos = given.pop("eos", ())
    place = len(output) if position is None else position
    return SampleSpec(SamplingParams(**given), prompt, output, seed, place, eos)


def edited(logits: torch.Tensor, specs: list[SampleSpec], device: torch.device) -> torch.Tensor:
    """The logits as the kernel edits them, on the device."""
    rows = logits.clone().to(device)
    vocabulary = logits.shape[1]
    tables = EditTables.empty(len(specs), vocabulary, vocabulary, device)
    # Rows that nothing edits have no row of the tables, the others have them the other way round.
    edited = [bool(row_bias(one, vocabulary)) or is_penalised(one.params) for one in specs]
    places = [len(specs) - 1 - row if edited[row] else -1 for row in range(len(specs))]
    for place, one in zip(places, specs, strict=True):
        if place >= 0:
            tables.set_bias(place, row_bias(one, vocabulary))
            tables.set_uses(place, row_uses(one, one.output_token_ids, vocabulary))
    fields = (tables.token_ids, tables.bias, tables.num_biased, tables.uses)
    params = [one.params for one in specs]
    columns = (
        [p.repetition_penalty for p in params],
        [p.presence_penalty for p in params],
        [p.frequency_penalty for p in params],
    )
    penalties = (torch.tensor(column, dtype=torch.float32, device=device) for column in columns)
    edit_logits(rows, torch.tensor(places, dtype=torch.int32, device=device), *fields, *penalties)
    return rows


def drawn(logits: torch.Tensor, specs: list[SampleSpec], device: torch.device) -> list[int]:
    """Tokens of the kernels."""
    rows = edited(logits, specs, device)
    laws, tokens = draw_params(specs), torch.full((len(specs),), 99, dtype=torch.int64, device=device)
    columns = tuple(laws.values())
    draw_tokens(tokens, rows, *(column.to(device) for column in columns))
    return tokens.tolist()


def expected(logits: torch.Tensor, specs: list[SampleSpec]) -> list[int]:
    """Tokens of the reference, -1 where it refuses."""
    tokens = [sample_row(row, one) for row, one in zip(logits.numpy(), specs, strict=True)]
    return [-1 if token is None else token.token_id for token in tokens]


def rows_of(count: int, seed: int, *, spread: float = 3.0, vocabulary: int = VOCABULARY) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, spread, (count, vocabulary)).astype(np.float32))


LAWS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "plain": {"temperature": 1.0},
    "cold": {"temperature": 0.2},
    "hot": {"temperature": 40.0},
    "top-k": {"top_k": 20},
    "top-k of one": {"top_k": 1},
    "top-k of nearly all": {"top_k": VOCABULARY - 1},
    "top-k of more": {"top_k": VOCABULARY + 1},
    "top-p": {"top_p": 0.9},
    "top-p of nearly nothing": {"top_p": 1e-9},
    "top-p of nearly all": {"top_p": 0.9999999},
    "top-p, hot": {"top_p": 0.99, "temperature": 30.0},
    "min-p": {"min_p": 0.05},
    "min-p of all": {"min_p": 1.0},
    "all filters": {"temperature": 1.3, "top_k": 50, "top_p": 0.8, "min_p": 0.02},
}


@pytest.mark.parametrize("law", LAWS)
def test_every_law_draws_the_tokens_of_the_reference(law: str, device: torch.device) -> None:
    logits = rows_of(2, seed=len(law))
    specs = [spec(seed=31 * row - 20, position=row, **LAWS[law]) for row in range(2)]
    assert drawn(logits, specs, device) == expected(logits, specs)


@pytest.mark.parametrize("law", ["top-k", "top-p", "all filters", "plain"])
def test_tokens_with_equal_logits_are_taken_in_the_order_of_their_ids(law: str, device: torch.device) -> None:
    logits = rows_of(3, seed=1).round()
    logits[1] = 0.0
    logits[2, ::2] = -0.0
    specs = [spec(seed=row, **LAWS[law]) for row in range(3)]
    assert drawn(logits, specs, device) == expected(logits, specs)


def test_the_tokens_are_the_same_whether_or_not_the_near_ones_fit_the_buffer(
    monkeypatch: pytest.MonkeyPatch, device: torch.device
) -> None:
    logits = rows_of(2, seed=3)
    specs = [spec(seed=row, temperature=1.5, top_k=40 * (row % 2), top_p=0.9) for row in range(2)]
    roomy = drawn(logits, specs, device)
    monkeypatch.setattr(token_draws, "_GATHERED", 16)
    assert drawn(logits, specs, device) == roomy == expected(logits, specs)


def test_many_draws_of_one_law_are_those_of_the_reference_in_any_batch(device: torch.device) -> None:
    """16 draws from 40 tokens: what repeats an error of the law somewhere would show it here."""
    logits = rows_of(1, seed=7, spread=1.0, vocabulary=40).expand(16, -1).contiguous()
    specs = [spec(seed=5, position=position, top_p=0.95) for position in range(16)]
    order = random.Random(1).sample(range(16), 16)
    tokens = drawn(logits, [specs[i] for i in order], device)
    assert tokens == [expected(logits[:1], [specs[i]])[0] for i in order]
    assert len(set(tokens)) > 6


@pytest.mark.parametrize("seed", [0, -1, 2**63, 2**64 + 5, -(2**70)])
def test_any_integer_is_a_seed(seed: int, device: torch.device) -> None:
    logits = rows_of(1, seed=2, spread=0.5)
    assert drawn(logits, [spec(seed=seed)], device) == expected(logits, [spec(seed=seed)])


EDITS: dict[str, dict[str, Any]] = {
    "bias": {"logit_bias": {5: 4.0, 2499: -100.0, 17: 0.5}},
    "repetition": {"repetition_penalty": 1.3, "prompt": [1, 2, 3, 2, 9], "output": [9, 9, 40]},
    "presence": {"presence_penalty": 0.7, "prompt": [1, 2], "output": [4, 4, 7]},
    "frequency": {"frequency_penalty": -0.9, "output": [4, 4, 7, 8, 8, 8]},
    "minimum length": {"min_tokens": 5, "stop_token_ids": (3, 4), "eos": (0, 2)},
    "all": {
        "logit_bias": {7: 3.0, 0: 50.0, 8: -1.0},
        "repetition_penalty": 0.8,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "min_tokens": 9,
        "stop_token_ids": (7,),
        "eos": (0,),
        "prompt": list(range(400)),
        "output": [7, 8, 8, 999],
    },
}


@pytest.mark.parametrize("temperature", [0.0, 1.2])
@pytest.mark.parametrize("edits", EDITS)
def test_penalties_bias_and_masks_give_the_tokens_of_the_reference(
    edits: str, temperature: float, device: torch.device
) -> None:
    logits = rows_of(3, seed=11)
    logits[:, :10] += 6
    specs = [spec(seed=row, temperature=temperature, **EDITS[edits]) for row in range(2)] + [spec(temperature=0.0)]
    assert drawn(logits, specs, device) == expected(logits, specs)


@pytest.mark.parametrize("edits", EDITS)
def test_edited_logits_have_the_law_of_the_reference_exactly(edits: str, device: torch.device) -> None:
    logits, specs = rows_of(2, seed=12, spread=1.0), [spec(**EDITS[edits]), spec()]
    rows = edited(logits, specs, device).cpu().numpy()
    for row, raw, one in zip(rows, logits.numpy(), specs, strict=True):
        assert np.array_equal(distribution(row, spec()), distribution(raw, one))


def test_rows_without_a_usable_logit_draw_minus_one_and_leave_the_others_alone(device: torch.device) -> None:
    logits = rows_of(6, seed=4)
    logits[0, 5], logits[1, 2499], logits[2] = math.nan, math.inf, -math.inf
    logits[3, 0:2499] = -math.inf
    specs = [spec(seed=row, temperature=float(row % 2), top_p=0.9) for row in range(5)]
    specs.append(spec(min_tokens=1, logit_bias=dict.fromkeys(range(VOCABULARY), -math.inf), position=0))
    tokens = drawn(logits, specs, device)
    assert tokens == expected(logits, specs)
    assert tokens[:4] == [-1, -1, -1, 2499]
    assert tokens[5] == -1


def test_rows_may_lie_apart(device: torch.device) -> None:
    wide = rows_of(3, seed=6, vocabulary=700).to(device)
    specs = [spec(seed=row, top_k=9) for row in range(3)]
    laws, tokens = draw_params(specs), torch.empty(3, dtype=torch.int64, device=device)
    columns = tuple(laws.values())
    draw_tokens(tokens, wide[:, :500], *(column.to(device) for column in columns))
    assert tokens.tolist() == expected(wide[:, :500].cpu().contiguous(), specs)


def test_a_vocabulary_whose_weights_could_overflow_is_refused(device: torch.device) -> None:
    laws, one = draw_params([spec()]), torch.empty(1, dtype=torch.int64, device=device)
    columns = tuple(laws.values())
    with pytest.raises(ValueError, match="1 to 524287 are possible"):
        draw_tokens(one, torch.empty(1, 1 << 19, device=device), *(column.to(device) for column in columns))


@pytest.mark.parametrize("vocabulary", [40, VOCABULARY])
def test_log_probabilities_are_those_of_the_reference_bit_by_bit(vocabulary: int, device: torch.device) -> None:
    logits = rows_of(3, seed=5, spread=2.0, vocabulary=vocabulary)
    logits[1] = logits[1].round()
    tokens = torch.tensor([7, 0, vocabulary - 1])
    found = LogProbabilities(logits.to(device), tokens.to(device), {0: 20, 2: 0, 1: 5})
    if device.type == "cuda":
        torch.cuda.synchronize()
    by_row = found.by_row()
    for row, count in ((0, 20), (1, 5), (2, 0)):
        assert by_row[row] == token_logprob(logits[row].numpy(), int(tokens[row]), count)


def test_sums_of_weights_are_those_of_the_reference(device: torch.device) -> None:
    logits = rows_of(2, seed=8, spread=9.0)
    best, totals = torch.empty(2, device=device), torch.empty(2, dtype=torch.int64, device=device)
    row_totals(best, totals, logits.to(device))
    assert totals.tolist() == [int(weights_of(row, 1.0).sum()) for row in logits.numpy()]
    assert best.tolist() == logits.amax(1).tolist()
