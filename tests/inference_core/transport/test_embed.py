"""`CoreClient.embed` over both transports: the hidden state, typed refusals, and nothing left behind."""

import asyncio

import numpy as np
import pytest

from inference_core.errors import InvalidRequestError, QueueFullError
from tests.inference_core.hash_model import hash_core


async def test_an_embedded_prompt_is_the_mean_of_its_hidden_states(connect):
    cores = []
    client = await connect(lambda: cores.append(hash_core("m")) or cores[0])

    prompts = [[1, 2, 3], list(range(40)), [7] * 9]
    means = await asyncio.gather(*(client.embed("m", prompt, 1, "mean") for prompt in prompts))
    last = await client.embed("m", prompts[1], 1, "last")

    runner = cores[0]._models["m"].runner
    truth = [runner.expected_states(prompt, 1) for prompt in prompts]
    assert all(got == pytest.approx(want.mean(axis=0)) for got, want in zip(means, truth, strict=True))
    assert last.dtype == np.float32
    assert np.array_equal(last, truth[1][-1])
    model = (await client.stats()).models[0]
    assert (model.blocks_in_use, model.blocks_cached, model.generated_tokens) == (0, 0, 0)


async def test_what_cannot_be_embedded_is_refused_by_name(connect):
    client = await connect(lambda: hash_core("m"))

    with pytest.raises(InvalidRequestError, match=r"evidence\.layer is 2; m has layers 1 to 1"):
        await client.embed("m", [1, 2], 2)
    with pytest.raises(InvalidRequestError, match="model 'x' is unknown"):
        await client.embed("x", [1, 2], 1)
    with pytest.raises(QueueFullError):
        await client.embed("m", [1, 2], 1, deadline=0.0)


async def test_cancellation_frees_the_blocks(connect):
    client = await connect(lambda: hash_core("m"))
    task = asyncio.create_task(client.embed("m", list(range(900)), 1))
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await client.stats()).models[0].blocks_in_use == 0
