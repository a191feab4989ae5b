"""Manifests are decoded in threads, several at a time."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, threading
sys.setswitchinterval(1e-6)
from barnabas.storage.tier.manifest import Entry, Manifest, decode, encode
entry = Entry(base_offset=0, first_offset=0, last_offset=9, end_offset=10, max_timestamp=1, log_size=100,
              aux_sizes=(0, 0, 0, 0, 4), aux_checksum=0, epochs=[(0, 0)], name="0" * 20 + "-0-" + "0" * 16)
content = encode(Manifest(topic_id="t", partition=0, number=1, leader_epoch=0, nonce="n", log_start_offset=0, entries=[entry]))
barrier = threading.Barrier(8)
def run():
    barrier.wait()
    for _ in range(100):
        decode(content, "t", 0)
threads = [threading.Thread(target=run) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""


@pytest.mark.sockets
def test_the_first_manifests_of_a_process_are_decoded_at_once() -> None:
    """As after a start: the first decoding of a struct in two threads ended the process (SIGSEGV in msgspec)."""
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
