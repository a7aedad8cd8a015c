"""A growing queue is announced once, and once more when it has calmed down."""

import logging

import pytest

from inference_core.engine.served_model import QueueAlert
from inference_core.protocol import AddRequest, Knobs, SamplingParams
from tests.inference_core.hash_model import hash_core


def test_an_alert_is_raised_above_the_threshold_and_lowered_at_half_of_it(caplog: pytest.LogCaptureFixture) -> None:
    alert, raised = QueueAlert("m"), []
    for waiting in (0, 4, 5, 6, 9, 5, 3, 2, 5, 6):
        alert.look(waiting, threshold=5, most=10)
        raised.append(alert.raised)
    assert raised == [False, False, False, True, True, True, True, False, False, True]
    assert [record.getMessage().split(",")[0] for record in caplog.records] == [
        "m: 6 sequences wait",
        "m: the queue is down to 2 sequences",
        "m: 6 sequences wait",
    ]


def test_the_501st_waiting_request_raises_the_alert_of_its_model(caplog: pytest.LogCaptureFixture) -> None:
    core = hash_core("m", "other", knobs=Knobs(max_num_seqs=1))
    with caplog.at_level(logging.WARNING):
        for number in range(501):
            assert not any(model.queue_alert for model in core.stats().models)
            sampling = SamplingParams(max_tokens=1)
            core.add(AddRequest(request_id=str(number), model="m", prompt_token_ids=[1], sampling=sampling))
    assert [model.queue_alert for model in core.stats().models] == [True, False]
    assert "m: 501 sequences wait, more than the alert threshold of 500; from 1000 on they are refused" in caplog.text
    while core.has_work:
        core.step()
    assert not any(model.queue_alert for model in core.stats().models)
