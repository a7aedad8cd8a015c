"""The contract of `CoreClient`, held by every transport."""

import asyncio
import threading

import pytest
from scripted_core import ScriptedCore, expected_tokens

from inference_core.errors import CoreGoneError, CoreLostError, InvalidRequestError
from inference_core.protocol import Knobs
from tests.inference_core.hash_model import HashModelRunner, hash_core
from tests.polling import eventually


async def collect(client, request):
    return [output async for output in client.generate(request)]


def tokens_of(outputs, index=0):
    return [token for output in outputs if output.index == index for token in output.token_ids]


async def first_output(client, request):
    """The open iterator and its first output."""
    outputs = client.generate(request)
    return outputs, await anext(outputs)


async def running(client):
    return (await client.stats()).models[0].running


async def test_the_models_are_known_once_started(connect):
    client = await connect(ScriptedCore)

    assert client.models["m"].vocab_size == 1000


async def test_outputs_come_in_order_and_end_with_the_finish_reason(connect, ask):
    client = await connect(ScriptedCore)

    outputs = await collect(client, ask(tokens=20))

    assert tokens_of(outputs) == expected_tokens([1, 2, 3], 0, 20)
    assert [output.finish_reason for output in outputs] == [None] * 19 + ["length"]
    assert {output.request_id for output in outputs} == {"r"}


async def test_fifty_concurrent_requests_each_get_their_own_tokens(connect, ask):
    client = await connect(ScriptedCore)

    answers = await asyncio.gather(*(collect(client, ask(f"r{i}", [i], tokens=1 + i % 9)) for i in range(50)))

    for i, outputs in enumerate(answers):
        assert tokens_of(outputs) == expected_tokens([i], 0, 1 + i % 9)


async def test_all_choices_of_a_request_arrive(connect, ask):
    client = await connect(ScriptedCore)

    outputs = await collect(client, ask(n=3, tokens=4))

    assert [tokens_of(outputs, index) for index in range(3)] == [expected_tokens([1, 2, 3], i, 4) for i in range(3)]
    assert [output.finish_reason for output in outputs].count("length") == 3


async def test_closing_an_iterator_early_frees_its_request_and_leaves_others_alone(connect, ask):
    client = await connect(ScriptedCore)
    closing, _ = await first_output(client, ask("closing", tokens=10**6))
    staying, _ = await first_output(client, ask("staying", [5], tokens=10**6))

    await closing.aclose()

    assert await running(client) == 1
    assert (await anext(staying)).request_id == "staying"
    await staying.aclose()


async def test_outputs_that_no_one_has_taken_yet_can_be_looked_at_until_the_iterator_is_closed(connect, ask):
    client = await connect(ScriptedCore)
    outputs, first = await first_output(client, ask(tokens=20))

    unread = await eventually(lambda: len(waiting := client.unread("r")) == 19 and waiting)
    taken = [await anext(outputs) for _ in range(4)]
    left = client.unread("r")
    await outputs.aclose()

    assert unread == taken + left
    assert tokens_of([first, *unread]) == expected_tokens([1, 2, 3], 0, 20)
    assert client.unread("r") == client.unread("never seen") == []


async def test_a_choice_that_is_aborted_ends_alone_and_says_so(connect, ask):
    client = await connect(ScriptedCore)
    outputs, _ = await first_output(client, ask(n=3, tokens=10**6))

    client.abort_choice("r", 1)
    while (last := await anext(outputs)).finish_reason is None:
        pass
    later = [await anext(outputs) for _ in range(12)]

    assert (last.index, last.finish_reason, last.request_id) == (1, "abort", "r")
    assert {output.index for output in later} == {0, 2}
    await outputs.aclose()
    assert await running(client) == 0


async def test_a_request_ends_with_its_last_choice_whether_aborted_or_not(connect, ask):
    client = await connect(ScriptedCore)
    outputs, _ = await first_output(client, ask(n=2, tokens=10**6))

    client.abort_choice("r", 0)
    client.abort_choice("r", 1)
    reasons = {output.index: output.finish_reason async for output in outputs if output.finish_reason}

    assert reasons == {0: "abort", 1: "abort"}
    assert await running(client) == 0


async def test_a_command_interrupts_the_step_under_way(connect, ask):
    core = ScriptedCore()
    client = await connect(lambda: core)
    outputs, _ = await first_output(client, ask(tokens=10**6))
    core.hold()
    core.in_step.clear()
    await asyncio.to_thread(core.in_step.wait)
    before = core.interruptions

    client.abort_choice("r", 0)

    assert await eventually(lambda: core.interruptions > before)
    core.release()
    assert [output.finish_reason async for output in outputs][-1] == "abort"


async def test_aborting_a_choice_that_has_ended_is_ignored(connect, ask):
    client = await connect(ScriptedCore)
    await collect(client, ask("over", tokens=2))
    open_iterator, _ = await first_output(client, ask("open", n=2, tokens=10**6))

    client.abort_choice("over", 0)
    client.abort_choice("never seen", 0)
    client.abort_choice("open", 7)

    assert await running(client) == 1
    assert {(await anext(open_iterator)).finish_reason for _ in range(8)} == {None}
    await open_iterator.aclose()


async def test_cancelling_the_task_that_iterates_frees_its_request(connect, ask):
    client = await connect(ScriptedCore)
    started = asyncio.Event()

    async def iterate():
        async for _ in client.generate(ask(tokens=10**6)):
            started.set()

    task = asyncio.create_task(iterate())
    await started.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert await running(client) == 0


async def test_breaking_out_of_the_loop_frees_its_request(connect, ask):
    client = await connect(ScriptedCore)

    async for _ in client.generate(ask(tokens=10**6)):
        break

    # The event loop closes a dropped iterator a few turns later; each query takes some.
    assert 0 in [await running(client) for _ in range(20)]


async def test_a_request_id_can_be_used_again_at_once_and_gets_no_stale_tokens(connect, ask):
    client = await connect(ScriptedCore)
    abandoned, _ = await first_output(client, ask("same", [1], tokens=10**6))
    await abandoned.aclose()

    outputs = await collect(client, ask("same", [2], tokens=5))

    assert tokens_of(outputs) == expected_tokens([2], 0, 5)


@pytest.mark.parametrize(("salt", "kind", "param"), [("invalid", "invalid", "top_p"), ("full", "overloaded", None)])
async def test_a_refused_request_ends_with_one_error_output(connect, ask, salt, kind, param):
    client = await connect(ScriptedCore)

    outputs = await collect(client, ask(salt=salt, n=2))

    assert len(outputs) == 1
    assert outputs[0].finish_reason == "error"
    assert (outputs[0].error_kind, outputs[0].error_param) == (kind, param)
    assert outputs[0].error


async def test_a_failing_choice_ends_its_request_and_frees_the_other_choices(connect, ask):
    client = await connect(ScriptedCore)

    outputs = await collect(client, ask(salt="choice", n=2, tokens=10**6))

    assert outputs[-1].finish_reason == "error"
    assert outputs[-1].error == "row 0 holds NaN"
    assert await running(client) == 0


async def test_knobs_change_and_show_in_the_stats(connect):
    client = await connect(ScriptedCore)

    answer = await client.set_knobs({"max_num_seqs": 3}, "m", keep=True)

    assert answer.before == {"m": Knobs()}
    assert answer.knobs == {"m": Knobs(max_num_seqs=3)}
    assert (await client.stats()).models[0].knobs.max_num_seqs == 3


async def test_refused_knobs_raise_with_the_reason_and_change_nothing(connect):
    client = await connect(ScriptedCore)

    with pytest.raises(InvalidRequestError, match="allowed is 1 and more") as caught:
        await client.set_knobs({"max_num_seqs": 0, "prefix_caching": False})

    assert caught.value.param == "max_num_seqs"
    assert (await client.stats()).models[0].knobs == Knobs()


@pytest.mark.parametrize("value", [True, 3, 0.5, "a", [1, 2], None])
async def test_a_knob_of_any_kind_crosses_the_transport(connect, value):
    core = ScriptedCore()
    client = await connect(lambda: core)

    await client.set_knobs({"knob": value})

    assert core.changes == ({"knob": value}, None, False)


async def test_adapters_come_and_go_over_the_transport(connect, ask):
    client = await connect(lambda: hash_core("m", adapter_slots=1))

    loaded = await client.load_adapter("m", "a", "folder")

    assert [(i.name, i.path, i.resident) for i in loaded] == [("a", "folder", False)]
    plain, adapted = await collect(client, ask("plain")), await collect(client, ask("adapted", adapter="a"))
    assert [o.token_ids for o in plain] != [o.token_ids for o in adapted]
    assert (await client.stats()).models[0].adapters[0].resident
    assert await client.unload_adapter("m", "a") == []
    assert (await collect(client, ask("late", adapter="a")))[0].error_param == "adapter"


async def test_a_refused_adapter_raises_with_the_reason_and_the_parameter(connect):
    client = await connect(lambda: hash_core("m", adapter_slots=1))

    for change, param in [(client.load_adapter("n", "a", "f"), "model"), (client.unload_adapter("m", "a"), "name")]:
        with pytest.raises(InvalidRequestError, match="is unknown") as caught:
            await change
        assert caught.value.param == param


async def test_when_the_core_dies_everyone_learns_why(connect, ask):
    core = ScriptedCore()
    client = await connect(lambda: core)
    open_iterator, _ = await first_output(client, ask("innocent", tokens=10**6))

    with pytest.raises(CoreLostError, match="boom"):
        await collect(client, ask("guilty", salt="explode"))
    with pytest.raises(CoreLostError, match="boom"):
        async for _ in open_iterator:
            pass


async def test_calls_after_the_cores_death_raise_at_once(connect, ask):
    client = await connect(ScriptedCore)
    with pytest.raises(CoreGoneError):
        await collect(client, ask(salt="explode"))

    with pytest.raises(CoreGoneError, match="boom"):
        client.generate(ask())
    with pytest.raises(CoreGoneError, match="boom"):
        await client.stats()
    with pytest.raises(CoreGoneError, match="boom"):
        await client.set_knobs({})


async def test_a_query_under_way_when_the_core_dies_raises(connect, ask):
    core = ScriptedCore()
    client = await connect(lambda: core)
    core.hold()
    doomed = asyncio.create_task(collect(client, ask(salt="explode")))
    await asyncio.to_thread(core.in_step.wait)
    query = asyncio.create_task(client.stats())
    await asyncio.sleep(0)
    core.release()

    with pytest.raises(CoreGoneError, match="boom"):
        await query
    with pytest.raises(CoreGoneError, match="boom"):
        await doomed


async def test_a_dead_core_can_be_started_afresh(connect, ask):
    client = await connect(ScriptedCore)
    with pytest.raises(CoreGoneError):
        await collect(client, ask(salt="explode"))

    await connect.revive(ScriptedCore)
    await client.start()

    assert tokens_of(await collect(client, ask(tokens=3))) == expected_tokens([1, 2, 3], 0, 3)


async def test_a_core_that_does_not_load_makes_start_raise_with_the_reason(connect):
    connected = threading.Event()

    def factory():
        assert connected.wait(60)
        raise MemoryError("needs 3 bytes, has 2")

    start = asyncio.create_task(connect(factory))
    for _ in range(100):
        await asyncio.sleep(0)
    connected.set()

    with pytest.raises(CoreGoneError, match="needs 3 bytes, has 2"):
        await start


async def test_closing_the_client_ends_its_iterators_and_frees_their_requests(connect, ask):
    core = ScriptedCore()
    client = await connect(lambda: core)
    outputs, _ = await first_output(client, ask(tokens=10**6))

    await client.close()
    await client.close()

    while core.live:
        await asyncio.to_thread(lambda: None)  # a server learns of it in a later turn of the loop
    with pytest.raises(CoreGoneError, match="closed") as caught:
        async for _ in outputs:
            pass
    assert not isinstance(caught.value, CoreLostError)
    with pytest.raises(CoreGoneError, match="closed"):
        await client.stats()


async def test_calls_before_start_raise():
    from inference_core.transport.core_thread import ThreadCoreClient

    with pytest.raises(CoreGoneError, match="not started"):
        await ThreadCoreClient(ScriptedCore).stats()


async def test_all_outputs_of_a_step_reach_the_event_loop_in_one_wake_up(connect, ask, monkeypatch):
    core = ScriptedCore()
    client = await connect(lambda: core)
    loop, wake_ups = asyncio.get_running_loop(), []
    wake = loop.call_soon_threadsafe
    monkeypatch.setattr(
        loop, "call_soon_threadsafe", lambda *args, **kwargs: (wake_ups.append(args), wake(*args, **kwargs))[1]
    )

    await asyncio.gather(*(collect(client, ask(f"r{i}", [i], tokens=20)) for i in range(8)))

    assert 20 <= core.steps < 8 * 20
    assert len(wake_ups) == core.steps


async def test_the_event_loop_runs_on_while_the_core_is_in_a_long_step(connect, ask):
    core = ScriptedCore()
    client = await connect(lambda: core)
    core.hold()
    first = asyncio.create_task(collect(client, ask("a", tokens=2)))
    await asyncio.to_thread(core.in_step.wait)
    # A loop that waits for the step goes on only after this.
    late = threading.Timer(30, core.release)
    late.start()

    others = [asyncio.create_task(collect(client, ask(f"b{i}", [9, i], tokens=2))) for i in range(8)]
    for _ in range(100):
        await asyncio.sleep(0)
    assert late.is_alive(), "the event loop waited for the core"
    late.cancel()
    core.release()

    assert tokens_of(await first) == expected_tokens([1, 2, 3], 0, 2)
    for i, other in enumerate(others):
        assert tokens_of(await other) == expected_tokens([9, i], 0, 2)


async def test_an_idle_core_sleeps_until_a_command_comes(connect):
    core = ScriptedCore()
    client = await connect(lambda: core)
    await client.stats()
    before = core.work_queries

    for _ in range(20):
        await client.stats()

    assert core.work_queries - before <= 3 * 20
    assert core.steps == 0


def true_tokens(prompt, count):
    """What the hash model answers, computed without a core."""
    return HashModelRunner("m", bytearray(4096), 4096).expected_tokens(prompt, count)


async def test_fifty_requests_of_the_real_core_get_the_tokens_they_get_alone(connect, ask):
    core = hash_core("m")
    client = await connect(lambda: core)
    prompts = [[i % 7] * (1 + 3 * i) for i in range(50)]

    answers = await asyncio.gather(*(collect(client, ask(f"r{i}", p, tokens=12)) for i, p in enumerate(prompts)))

    assert [tokens_of(outputs) for outputs in answers] == [true_tokens(prompt, 12) for prompt in prompts]
    await client.close()
    core.check_integrity()


async def test_early_closes_leave_the_real_core_without_work_or_blocks_in_use(connect, ask):
    core = hash_core("m")
    client = await connect(lambda: core)
    opened = [(await first_output(client, ask(f"r{i}", [i] * 40, tokens=400, n=2)))[0] for i in range(10)]

    for outputs in opened:
        await outputs.aclose()

    model = (await client.stats()).models[0]
    assert (model.running, model.waiting, model.blocks_in_use) == (0, 0, 0)
    await client.close()
    core.check_integrity()


async def test_what_the_real_core_refuses_names_the_parameter(connect, ask):
    client = await connect(lambda: hash_core("m", max_context=100))

    outputs = await collect(client, ask(prompt=[1] * 100))

    assert [(o.finish_reason, o.error_kind, o.error_param) for o in outputs] == [
        ("error", "invalid", "prompt_token_ids")
    ]


async def test_a_full_queue_of_the_real_core_says_so(connect, ask):
    knobs = Knobs(max_waiting=1, max_num_seqs=1)
    # An answer too long to end before the others are seen, however slowly this test is run.
    client = await connect(lambda: hash_core("m", slabs=2**14, max_context=2**22, knobs=knobs))
    opened, _ = await first_output(client, ask("running", tokens=2**21))
    waiting = asyncio.create_task(collect(client, ask("waiting", tokens=1)))
    while (await client.stats()).models[0].waiting == 0:
        pass

    outputs = await collect(client, ask("refused", tokens=1))
    await opened.aclose()

    assert outputs[0].error_kind == "overloaded"
    assert (await waiting)[-1].finish_reason == "length"


async def test_an_exception_of_a_model_fails_its_requests_and_not_the_core(connect, ask, monkeypatch):
    core = hash_core("m")
    client = await connect(lambda: core)
    with monkeypatch.context() as patch:
        patch.setattr(HashModelRunner, "run", lambda self, plan: 1 / 0)

        outputs = await collect(client, ask())

    assert outputs[-1].error_kind == "internal"
    assert tokens_of(await collect(client, ask(tokens=3))) == true_tokens([1, 2, 3], 3)
