"""Ports of test servers: two processes are never given the same one."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from barnabas.testing.ports import free_port

pytestmark = pytest.mark.sockets

_GIVEN = "from barnabas.testing.ports import free_port; print(free_port(), flush=True); input()"


def test_a_port_given_to_another_process_is_given_again_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _GIVEN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        spare = free_port()
        drawn = iter([theirs, *range(spare + 1, spare + 100)])
        monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: next(drawn))
        assert free_port() != theirs, "nothing listens there, but the other process has it"
        other.stdin.close()
        other.wait()
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda *_: theirs)
    assert free_port() == theirs
