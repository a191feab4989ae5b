"""A simulated client's requests to the coordinators of groups and of transactional ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from barnabas.wire.errors import ErrorCode
from barnabas.wire.messages.find_coordinator import FindCoordinatorRequest
from compat_tests.simulation.history import History, Violation
from compat_tests.simulation.wire_client import Address, Client, NoResponse

FIND_COORDINATOR = 10
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
E = ErrorCode

COORDINATOR_MOVED = frozenset({E.NOT_COORDINATOR, E.COORDINATOR_NOT_AVAILABLE})
# What a coordinator may answer that a client repeats its request after. Not every client repeats after others, so that the
# errors of brokers among each other must not reach it (KAFKA-14417, KAFKA-16386).
WAIT = COORDINATOR_MOVED | {
    E.COORDINATOR_LOAD_IN_PROGRESS,
    E.CONCURRENT_TRANSACTIONS,
    E.UNKNOWN_TOPIC_OR_PARTITION,
    E.UNSTABLE_OFFSET_COMMIT,
}


class Coordinators:
    """The coordinators of ids and groups that a client knows."""

    def __init__(self, client: Client, history: History, should_continue: Callable[[], bool]) -> None:
        self._client = client
        self._history = history
        self._should_continue = should_continue
        self._known: dict[tuple[int, str], Address] = {}

    async def ask(self, kind: int, key: str, api: int, version: int, request: Any) -> Any:
        """The coordinator's answer, None without one."""
        address = self._known.get((kind, key)) or await self._find(kind, key)
        if address is None:
            return None
        try:
            return await self._client.ask(address, api, version, request)
        except NoResponse:
            self._known.pop((kind, key), None)
            await self._client.pause()
            return None

    async def wait(self, kind: int, key: str, error: ErrorCode) -> None:
        """After an error that asks for a repetition."""
        if error in COORDINATOR_MOVED:
            self._known.pop((kind, key), None)
        await self._client.pause()

    async def _find(self, kind: int, key: str) -> Address | None:
        client = self._client
        try:
            answer = await client.ask(
                client.any_address(), FIND_COORDINATOR, 6, FindCoordinatorRequest("", kind, [key])
            )
        except NoResponse:
            await client.refresh()
            await client.pause()
            return None
        found = answer.coordinators[0]
        if found.error_code:
            if E(found.error_code) not in WAIT:
                raise Violation(f"{client.name}: FindCoordinator failed with {E(found.error_code).name}")
            await client.pause(0.1)
            return None
        self._known[kind, key] = found.host, found.port
        return found.host, found.port
