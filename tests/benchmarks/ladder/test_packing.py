"""Packed questions: every answer's logits are those of the separate text, and nothing else is seen."""

import pytest
import torch
from torch.nn import functional

from benchmarks.ladder.packing import Branch, Question, packed, packed_logits
from inference_core.loaders.open_checkpoint import open_checkpoint
from quality.distillation.network import AdaptedDecoder, LowRank
from tests.inference_core.quantization.tiny_model import write_tiny_model

# Bytes: all prompts begin with the same four tokens.
QUESTIONS = [
    Question([9, 8, 7, 6, 20, 21], [Branch([], [30, 31], 3.0), Branch([40, 41], [50, 51, 52])]),
    Question([9, 8, 7, 6, 22], [Branch([40], [60])]),
    Question([9, 8, 7, 6, 23, 24, 25], [Branch([], [33]), Branch([42], [70, 71, 72, 73])]),
]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> AdaptedDecoder:
    torch.set_num_threads(1)
    folder = write_tiny_model(tmp_path_factory.mktemp("base") / "model")
    network = AdaptedDecoder(open_checkpoint(folder), LowRank(4, 2.0), torch.float32)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)), alpha=0.05)
    return network


def alone(network: AdaptedDecoder, prompt: list[int], branch: Branch) -> torch.Tensor:
    """The loss of every wanted token of one answer to one prompt."""
    text = [*prompt, *branch.given, *branch.wanted]
    first = len(prompt) + len(branch.given) - 1
    at = torch.arange(first, first + len(branch.wanted))
    logits = network(torch.tensor([text]), (torch.zeros_like(at), at))
    return functional.cross_entropy(logits, torch.tensor(branch.wanted), reduction="none")


@pytest.mark.parametrize("row_tokens", [1, 22, 1000])
def test_the_losses_are_those_of_separate_texts(network: AdaptedDecoder, row_tokens: int) -> None:
    batch = packed(QUESTIONS, row_tokens)
    with torch.no_grad():
        logits = packed_logits(network, batch)
        got = functional.cross_entropy(logits, batch.targets, reduction="none")
        want = torch.cat([alone(network, q.prompt, branch) for q in QUESTIONS for branch in q.branches])
    # Rows have another order.
    torch.testing.assert_close(got.sort().values, want.sort().values, atol=1e-4, rtol=0)


def test_the_gradient_is_that_of_separate_texts(network: AdaptedDecoder) -> None:
    batch = packed(QUESTIONS, 1000)
    logits = packed_logits(network, batch)
    functional.cross_entropy(logits, batch.targets, reduction="sum").backward()
    got = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    torch.cat([alone(network, q.prompt, branch) for q in QUESTIONS for branch in q.branches]).sum().backward()
    want = [parameter.grad.clone() for parameter in network.parameters() if parameter.grad is not None]
    network.zero_grad()
    assert len(got) == len(want) > 0
    torch.testing.assert_close(got, want, atol=1e-3, rtol=1e-3)


def test_rows_hold_as_many_tokens_as_allowed_and_the_shared_start_once() -> None:
    # The start has 4 tokens, the questions 9, 3 and 9 more.
    assert packed(QUESTIONS, 1000).token_ids.shape == (1, 4 + 9 + 3 + 9)
    assert packed(QUESTIONS, 16).token_ids.shape == (2, 16)
    assert packed(QUESTIONS, 1).token_ids.shape == (3, 13)


def test_weights_are_those_of_the_answers() -> None:
    assert packed(QUESTIONS, 1000).weights.sort().values.tolist() == [*[1.0] * 9, 3.0, 3.0]
