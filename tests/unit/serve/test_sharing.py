"""Threads and memory that clients share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from threading import Event

import pytest

from draftlens.serve.errors import ApiError
from draftlens.serve.sharing import Budget, Claim, Turns

WAIT = 30.0


Send = Callable[..., asyncio.Task[str]]
Go = Callable[[], None]


def run(test: Callable[[Send, Go], Awaitable[None]], count: int, many: bool) -> None:
    """Run a test with `send`, which begins work on a thread, and `go`, until which it lasts."""

    async def main() -> None:
        turns = Turns(count, many, "test")
        gate = Event()

        def send(client: str, name: str, log: list[str], **options: bool) -> asyncio.Task[str]:
            def call() -> str:
                log.append(name)
                assert gate.wait(WAIT)
                return name

            return asyncio.create_task(turns.run(client, call, **options))

        try:
            await test(send, gate.set)
        finally:
            gate.set()
            turns.close()

    asyncio.run(main())


async def begun(log: list[str], count: int) -> None:
    """Wait until so many works have begun, and show that no further one does."""
    async with asyncio.timeout(WAIT):
        while len(log) < count:
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(log) == count


def test_clients_take_turns() -> None:
    async def test(send: Send, go: Go) -> None:
        log: list[str] = []
        tasks = [send("a", f"a{number}", log) for number in range(4)]
        await begun(log, 1)
        tasks += [send("b", f"b{number}", log) for number in range(2)]
        await asyncio.sleep(0)
        go()
        assert await asyncio.gather(*tasks) == ["a0", "a1", "a2", "a3", "b0", "b1"]
        assert log == ["a0", "b0", "a1", "b1", "a2", "a3"]

    run(test, count=1, many=True)


def test_a_client_among_several_leaves_a_thread_free() -> None:
    async def test(send: Send, go: Go) -> None:
        log: list[str] = []
        tasks = [send("a", f"a{number}", log) for number in range(3)]
        await begun(log, 1)
        tasks.append(send("b", "b0", log))
        await begun(log, 2)
        assert log == ["a0", "b0"]
        go()
        await asyncio.gather(*tasks)

    run(test, count=2, many=True)


def test_large_work_leaves_a_thread_free() -> None:
    async def test(send: Send, go: Go) -> None:
        log: list[str] = []
        tasks = [send("", f"large {number}", log, is_large=True) for number in range(3)]
        await begun(log, 1)
        tasks.append(send("", "small", log))
        await begun(log, 2)
        assert log == ["large 0", "small"]
        go()
        await asyncio.gather(*tasks)

    run(test, count=2, many=False)


def test_a_single_client_has_all_threads_and_large_work_a_single_thread() -> None:
    async def test(send: Send, go: Go) -> None:
        log: list[str] = []
        tasks = [send("", f"{number}", log) for number in range(3)]
        await begun(log, 2)
        go()
        await asyncio.gather(*tasks)
        assert await send("", "large", log, is_large=True) == "large"

    run(test, count=2, many=False)

    async def alone(send: Send, go: Go) -> None:
        go()
        assert await send("", "large", [], is_large=True) == "large"

    run(alone, count=1, many=True)


def test_cancelled_work_keeps_its_thread_until_it_ends() -> None:
    async def test(send: Send, go: Go) -> None:
        log: list[str] = []
        running, waiting, last = (send("a", name, log) for name in ("running", "waiting", "last"))
        await begun(log, 1)
        running.cancel()
        waiting.cancel()
        await begun(log, 1)
        go()
        assert await last == "last"
        assert log == ["running", "last"]

    run(test, count=1, many=False)


def test_errors_arrive_and_a_closed_one_cancels() -> None:
    async def main() -> None:
        turns = Turns(1, False, "test")

        def fail() -> None:
            raise ValueError("wrong")

        with pytest.raises(ValueError, match="wrong"):
            await turns.run("", fail)
        turns.close()
        with pytest.raises(asyncio.CancelledError):
            await turns.run("", fail)

    asyncio.run(main())


def test_a_budget_bounds_the_sum_and_half_for_a_client() -> None:
    budget = Budget(100, True, "bodies")
    first, second = Claim(budget, "a"), Claim(budget, "b")
    first.take(50)
    with pytest.raises(ApiError) as refused:
        first.take(1)
    assert refused.value.status == 429
    second.take(50)
    with pytest.raises(ApiError):
        Claim(budget, "c").take(1)
    first.release()
    first.release()
    assert budget.held == 50
    Claim(budget, "c").take(50)
    alone = Budget(100, False, "bodies")
    Claim(alone, "").take(100)
