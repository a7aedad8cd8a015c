"""What is known of a server's queue: what it reports, or what our own streams reveal."""

import pytest

from tiers.remote.server_state import REPORT_SECONDS, QueueReport, ServerQueue, Stream


def answered(queue: ServerQueue, sent: float, took: float, tokens: int = 100) -> Stream:
    """A stream sent at a time, whose first token took so long, and which then ended."""
    stream = queue.send(sent, tokens)
    queue.first_token(stream, sent + took)
    queue.end(stream)
    return stream


def test_a_reported_queue_takes_as_long_as_the_server_needs_for_each_of_its_answers() -> None:
    queue = ServerQueue()
    queue.tell(QueueReport(running=8, waiting=20, finished=100), 0.0)
    assert (queue.waiting(0.0), queue.predicted_wait(0.0)) == (20, 0.0)
    queue.tell(QueueReport(running=8, waiting=30, finished=100), 1.0)
    queue.tell(QueueReport(running=8, waiting=40, finished=104), 2.0)
    assert queue.predicted_wait(2.0) == pytest.approx(40 * 0.5)
    queue.tell(QueueReport(running=8, waiting=10, finished=134), 5.0)
    assert 10 * 0.1 < queue.predicted_wait(5.0) < 10 * 0.2, "its newest speed counts most"
    queue.tell(QueueReport(running=8, waiting=0, finished=140), 6.0)
    assert (queue.waiting(6.0), queue.predicted_wait(6.0)) == (0, 0.0)


def test_an_idle_second_says_nothing_about_a_servers_speed() -> None:
    queue = ServerQueue()
    for second, (waiting, finished) in enumerate([(10, 0), (10, 10), (0, 11), (0, 11), (10, 12), (10, 22)]):
        queue.tell(QueueReport(running=8, waiting=waiting, finished=finished), float(second))
    assert queue.predicted_wait(5.0) == pytest.approx(10 * 0.1)


def test_a_restarted_server_counts_again_from_zero() -> None:
    queue = ServerQueue()
    for second, finished in enumerate([1000, 3, 13]):
        queue.tell(QueueReport(running=8, waiting=10, finished=finished), float(second))
    assert queue.predicted_wait(2.0) == pytest.approx(10 * 0.1)


def test_without_a_count_of_answers_the_first_tokens_of_our_streams_give_the_speed() -> None:
    queue = ServerQueue()
    queue.tell(QueueReport(running=1, waiting=0), 0.0)
    assert answered(queue, 0.0, took=0.2).queue_seconds == 0
    queue.tell(QueueReport(running=4, waiting=5), 1.0)
    assert answered(queue, 1.0, took=2.2).queue_seconds == pytest.approx(2.0)
    assert queue.predicted_wait(4.0) == pytest.approx(5 * 0.4)


def test_a_long_prompt_at_a_server_without_a_queue_has_not_waited() -> None:
    queue = ServerQueue()
    queue.tell(QueueReport(running=1, waiting=0), 0.0)
    answered(queue, 0.0, took=0.2)
    assert answered(queue, 1.0, took=2.0).queue_seconds == 0


def test_a_report_is_worth_nothing_after_its_time() -> None:
    queue = ServerQueue()
    queue.tell(QueueReport(running=8, waiting=20), 0.0)
    assert queue.waiting(REPORT_SECONDS) == 20
    assert queue.waiting(REPORT_SECONDS + 1) == 0


def test_streams_that_are_late_reveal_the_queue_of_a_server_that_tells_nothing() -> None:
    """One answer each half second after the first: eight wait, and the ninth would wait for four seconds."""
    queue = ServerQueue()
    answered(queue, 0.0, took=0.1)
    streams = [queue.send(10.0, 100) for _ in range(12)]
    assert (queue.waiting(10.1), queue.predicted_wait(10.1)) == (0, 0.0), "nothing is late yet"
    queue.first_token(streams[0], 10.1)
    for number, stream in enumerate(streams[1:4], start=1):
        queue.first_token(stream, 10.1 + number / 2)
    assert queue.waiting(11.6) == 8
    assert queue.predicted_wait(11.6) == pytest.approx(8 * 0.5)
    assert [stream.queue_seconds for stream in streams[:4]] == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.01)
    for stream in streams:
        queue.end(stream)
    assert (queue.waiting(12.0), queue.predicted_wait(12.0)) == (0, 0.0)


def test_the_wait_of_a_hanging_server_is_at_least_that_of_its_oldest_stream() -> None:
    queue = ServerQueue()
    answered(queue, 0.0, took=0.1)
    queue.send(10.0, 100)
    assert queue.predicted_wait(17.1) == pytest.approx(7.0)


def test_a_prompt_of_another_length_is_measured_by_its_own_kind() -> None:
    queue = ServerQueue()
    answered(queue, 0.0, took=0.1, tokens=50)
    assert answered(queue, 1.0, took=5.0, tokens=30_000).queue_seconds == 0
    waiting = queue.send(10.0, 30_000)
    assert queue.waiting(14.0) == 0
    queue.end(waiting)
    assert answered(queue, 20.0, took=15.0, tokens=30_000).queue_seconds == pytest.approx(10.0)


def test_what_is_usual_follows_a_slower_server_in_an_hour_and_not_in_a_minute() -> None:
    queue = ServerQueue()
    answered(queue, 0.0, took=0.1)
    queue_of_a_minute = [answered(queue, float(second), took=1.0).queue_seconds for second in range(1, 60)]
    assert min(queue_of_a_minute) > 0.85
    slower = [answered(queue, 60.0 + second, took=1.0).queue_seconds for second in range(0, 7200, 10)]
    assert slower[-1] == 0


def test_a_stream_that_ended_without_a_token_teaches_nothing() -> None:
    queue = ServerQueue()
    refused = queue.send(0.0, 100)
    queue.end(refused)
    queue.end(refused)
    queue.first_token(refused, 9.0)
    queue.send(10.0, 100)
    assert queue.waiting(100.0) == 0
