"""A mailbox hands everything to its one reader, in order, and loses nothing to a cancellation."""

import asyncio

import pytest

from inference_core.transport.event_client import Mailbox

pytestmark = pytest.mark.asyncio


async def test_items_come_out_in_the_order_they_went_in():
    mailbox = Mailbox()
    for item in range(5):
        mailbox.put(item)

    assert [await mailbox.get() for _ in range(5)] == [0, 1, 2, 3, 4]


async def test_a_waiting_reader_gets_an_item_that_is_put_later():
    mailbox = Mailbox()
    reading = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)

    mailbox.put("a")
    mailbox.put("b")

    assert await reading == "a"
    assert await mailbox.get() == "b"


async def test_a_cancelled_reader_loses_no_item():
    mailbox = Mailbox()
    reading = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    mailbox.put("a")
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading

    mailbox.put("b")

    assert [await mailbox.get(), await mailbox.get()] == ["a", "b"]


async def test_an_item_put_after_a_cancellation_reaches_the_next_reader():
    mailbox = Mailbox()
    first = asyncio.create_task(mailbox.get())
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    mailbox.put("a")

    assert await mailbox.get() == "a"
