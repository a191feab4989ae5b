"""A quorum forms once, of all configured voters, with one genesis, wherever the bootstrap is interrupted."""

from __future__ import annotations

import random
from functools import partial

import pytest

from barnabas.controller.link.followed_log import Discovery
from barnabas.controller.link.quorum_state import (
    FORMED,
    FORMING,
    PREPARED,
    QUORUM_STATE,
    QuorumState,
    check_configuration,
    read_quorum_state,
    write_quorum_state,
)
from barnabas.controller.link.tests.forming_voters import DIRECTORY, Voters, give_metadata
from barnabas.controller.link.tests.link_nodes import PORT, LinkedNode, LinkWorld, directory_of
from barnabas.controller.metadata.errors import MetadataError
from barnabas.controller.raft.voters import Voter as VoterRecord
from barnabas.testing.memory_disk import MemoryDisk, ProcessKilled

GROUPS = [[b"features", b"broker"], [b"topic"], [b"x" * 700_000, b"y" * 900_000]]


@pytest.mark.parametrize("bootstrap", [False, True])
def test_fresh_voters_form_a_quorum_once_all_have_answered(bootstrap: bool) -> None:
    voters = Voters()
    voters.start(2, 3, bootstrap=bootstrap)
    voters.run(30)
    assert voters.formed == []
    assert all(read_quorum_state(disk, DIRECTORY) is None for disk in voters.disks.values())
    voters.start(1, bootstrap=bootstrap)
    begun = voters.world.now
    while voters.formed != [1, 2, 3]:
        voters.run(0.005)
        assert voters.world.now - begun < 1
    state = voters.check_formed()
    assert [(v.node_id, v.host, v.port, v.directory_id) for v in state.voters] == [
        (n, f"n{n}", PORT, directory_of(n)) for n in (1, 2, 3)
    ]
    assert len(state.cluster_id) == 22
    assert voters.running[1].genesis == ([], -1)
    assert voters.running[2].links.identity.cluster_id == state.cluster_id


def test_partitioned_voters_form_a_quorum_when_the_network_heals() -> None:
    voters = Voters()
    voters.network.block("n1", "n3")
    voters.network.block("n3", "n1")
    voters.start(1, 2, 3)
    voters.run(20)
    assert voters.formed == []
    voters.network.unblock_all()
    voters.run(5)
    voters.check_formed()


def test_missing_voters_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "barnabas.link")
    voters = Voters()
    voters.start(2, 3)
    voters.run(70)
    said = [record.getMessage() for record in caplog.records if "still waiting" in record.getMessage()]
    why = "a quorum forms when all have been there at once"
    # Two nodes, after 5 s, 15 s, ...
    assert said == [f"still waiting for node 1 at n1:{PORT} (no connection within 2 s): {why}"] * 14
    voters.start(1)
    voters.run(70)
    voters.check_formed()
    assert sum("still waiting" in record.getMessage() for record in caplog.records) == 14


@pytest.mark.parametrize("seed_id", [1, 2, 3])
def test_a_single_node_grows_and_brings_its_metadata(seed_id: int) -> None:
    voters = Voters()
    give_metadata(voters.disks[seed_id], GROUPS)
    for node_id in (1, 2, 3):
        voters.start(node_id, cluster_id="its-own-cluster" if node_id == seed_id else "")
    voters.run(2)
    state = voters.check_formed()
    assert (state.seed_id, state.cluster_id) == (seed_id, "its-own-cluster")
    assert voters.running[2].genesis == ([record for group in GROUPS for record in group], 4)


def test_a_formed_quorum_starts_without_waiting() -> None:
    voters = Voters()
    voters.start(1, 2, 3)
    voters.run(2)
    state = voters.check_formed()
    for node_id in (1, 2, 3):
        voters.end(node_id)
    voters.start(2)
    assert voters.running[2].formed == state


def test_two_nodes_with_metadata_do_not_form_a_quorum() -> None:
    voters = Voters()
    for node_id in (1, 3):
        give_metadata(voters.disks[node_id], GROUPS)
    voters.start(1, 2, 3)
    voters.run(2)
    assert voters.formed == []
    for voter in voters.running.values():
        assert len(voter.failures) == 1
        assert "nodes 1 and 3 each have metadata of their own" in voter.failures[0]


def test_bootstrap_servers_must_name_this_node() -> None:
    voters = Voters()
    two_of_three: list[tuple[str, int, int | None]] = [("n1", PORT, None), ("n2", PORT, None)]
    voters.start(1, 2, bootstrap=True)
    voters.start(3, bootstrap=True, targets=two_of_three)
    voters.run(3)
    assert "does not name this node's own controller listener" in voters.running[3].failures[0]
    assert voters.formed == []


def test_another_voters_address_must_not_be_this_nodes() -> None:
    """Otherwise it would count itself for both."""
    voters = Voters()
    voters.start(1, targets=[("n3", PORT, 3), ("n2", PORT, 1), ("n1", PORT, 2)])
    voters.run(3)
    assert (
        f"names node 2 at n1:{PORT}, and this node, with node.id=1, answers" in voters.running[1].failures[0]
    )


def test_a_wiped_voter_does_not_vote_again() -> None:
    voters = Voters()
    voters.start(1, 2, 3)
    voters.run(2)
    voters.end(3)
    voters.disks[3] = MemoryDisk()
    # Its meta.properties has survived: the metadata alone is gone.
    voters.start(3)
    voters.run(2)
    assert "holds nothing of it" in voters.running[3].failures[0]
    voters.end(3)
    # Everything is gone, so the directory is another one.
    voters.start(3, directory_id=b"another one.....")
    voters.run(2)
    assert voters.running[3].formed is None
    assert voters.running[1].links.is_linked(2)
    assert not voters.running[1].links.is_linked(3)


def test_a_node_that_has_left_a_quorum_does_not_join_it_again() -> None:
    """Where the others were to leave it too, and have been forgotten."""
    voters = Voters()
    voters.start(1, 2, 3)
    voters.run(2)
    voters.end(3)
    voters.disks[3] = MemoryDisk()
    give_metadata(voters.disks[3], [[b"topic"]])
    voters.start(3)
    voters.run(2)
    (why,) = voters.running[3].failures
    assert "holds a single node's metadata instead" in why
    assert "stop node 1 and the other voters, remove __cluster_metadata-0" in why


def test_metadata_without_its_quorum_state_is_refused() -> None:
    voters = Voters()
    voters.start(1, 2, 3)
    voters.run(2)
    voters.end(2)
    voters.disks[2].remove(f"{DIRECTORY}/{QUORUM_STATE}")
    with pytest.raises(MetadataError, match="is missing next to the metadata of a quorum"):
        voters.start(2)


def count_changes(victim: int) -> int:
    """How many changes to its disk a voter makes until it is formed."""
    low, high = 1, 400
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if survives(victim, middle) else (middle + 1, high)
    return low


def survives(victim: int, changes: int) -> bool:
    voters = Voters()
    give_metadata(voters.disks[3], [[b"record"]])
    voters.disks[victim].kill_after = changes
    voters.world.on_killed = lambda _: None
    voters.start(1, 2, 3)
    voters.run(2)
    return not voters.running[victim].runtime.ended


@pytest.mark.parametrize("victim", [1, 3])
@pytest.mark.parametrize("power_fails", [False, True])
def test_the_next_start_continues_after_a_kill_at_any_step(victim: int, power_fails: bool) -> None:
    total = count_changes(victim)
    assert total >= 15
    for changes in range(total + 1):
        choose = random.Random(changes)
        voters = Voters(changes)
        voters.world.on_killed = lambda _: None
        give_metadata(voters.disks[3], [[b"record"]])
        voters.disks[victim].kill_after = changes
        try:
            voters.start(1, 2, 3)
            voters.run(1)
        except ProcessKilled:  # in its very start
            voters.running.setdefault(victim, voters.running.get(victim))  # type: ignore[arg-type]
        if victim in voters.running and voters.running[victim] is not None:
            voters.end(victim)
        voters.disks[victim].revive()
        if power_fails:
            voters.disks[victim] = voters.disks[victim].crash(partial(choose.randint, 0))
        for node_id in (1, 2, 3):
            if voters.running.get(node_id) is None:
                voters.start(node_id)
        voters.run(2)
        state = voters.check_formed()
        assert state.seed_id == 3
        assert voters.running[1].genesis == ([b"record"], 0)


@pytest.mark.parametrize("seed", range(40))
def test_kills_and_partitions_at_random_moments_converge(seed: int) -> None:
    voters = Voters(seed, shuffles=True)
    voters.world.on_killed = lambda _: None
    choose = voters.world.random
    voters.network.delay_s = lambda _source, _target: choose.uniform(0.0002, 0.01)
    if seed % 2:
        give_metadata(voters.disks[choose.randint(1, 3)], GROUPS)
    voters.start(1, 2, 3, bootstrap=seed % 3 == 0)
    decided: QuorumState | None = None
    for _ in range(choose.randint(1, 6)):
        voters.run(choose.choice([0.002, 0.01, 0.03, 0.1]))
        victim = choose.randint(1, 3)
        if choose.random() < 0.3:
            voters.network.reset(f"n{victim}", f"n{victim % 3 + 1}")
            continue
        voters.end(victim)
        if choose.random() < 0.5:
            voters.disks[victim] = voters.disks[victim].crash(partial(choose.randint, 0))
        if choose.random() < 0.5:
            voters.run(choose.uniform(0, 0.2))
        voters.start(victim, bootstrap=seed % 3 == 0)
        for voter in voters.running.values():
            if voter.formed is not None:
                assert decided in (None, voter.formed), "what was decided stands"
                decided = voter.formed
    voters.run(4)
    state = voters.check_formed()
    assert decided in (None, state)


def test_configuration_that_names_other_voters_is_refused() -> None:
    voters = [VoterRecord(n, f"n{n}", PORT, directory_of(n)) for n in (1, 2, 3)]
    state = QuorumState(stage=FORMED, attempt=bytes(16), cluster_id="c", seed_id=1, voters=voters)
    check_configuration(state, 1, [3, 2, 1], DIRECTORY)
    check_configuration(state, 1, [], DIRECTORY)
    check_configuration(None, 1, [7], DIRECTORY)
    with pytest.raises(MetadataError, match=r"names the voters 1,2,4, and .* formed with 1@n1:9093,2@n2"):
        check_configuration(state, 1, [1, 2, 4], DIRECTORY)
    with pytest.raises(MetadataError, match="belongs to a voter of the quorum"):
        check_configuration(state, 4, [1, 2, 3], DIRECTORY)


def test_a_damaged_state_is_detected() -> None:
    disk = MemoryDisk()
    voters = [VoterRecord(n, f"n{n}", PORT, directory_of(n)) for n in (1, 2, 3)]
    state = QuorumState(stage=FORMED, attempt=bytes(16), cluster_id="c", seed_id=1, voters=voters, genesis=77)
    write_quorum_state(disk, DIRECTORY, state)
    assert read_quorum_state(disk, DIRECTORY) == state
    content = disk.read_file(f"{DIRECTORY}/{QUORUM_STATE}")
    for position in range(len(content) - 1):
        damaged = bytearray(content)
        damaged[position] ^= 4
        disk.write_file(f"{DIRECTORY}/{QUORUM_STATE}", bytes(damaged))
        with pytest.raises(MetadataError, match=r"damaged|newer release"):
            read_quorum_state(disk, DIRECTORY)


def test_a_broker_learns_the_cluster_when_the_quorum_has_formed() -> None:
    voters = Voters()
    voters.start(1, 2)
    world = LinkWorld()
    world.world, world.network = voters.world, voters.network
    broker = LinkedNode(
        voters.network,
        world.identity(9, cluster_id="", voter_ids=[], bootstrap=True),
        "n9",
        b"sixteen bytes and more",
        world.settings,
    )
    found: list[str] = []
    configured: list[tuple[str, int, int | None]] = [("n2", PORT, None)]
    Discovery(broker.links, configured, found.append)
    broker.links.call(configured)
    voters.run(5)
    assert found == []
    assert broker.linked == [2]
    voters.start(3)
    voters.run(1)
    assert found == [voters.check_formed().cluster_id]
    assert broker.linked == [1, 2, 3]


@pytest.mark.parametrize("seed", range(60))
def test_voters_replaced_during_the_bootstrap_form_one_quorum(seed: int) -> None:
    """Directories are wiped, and come back empty or with metadata, so that attempts are given up and the seed changes."""
    voters = Voters(seed, shuffles=True)
    choose = voters.world.random
    voters.network.delay_s = lambda _source, _target: choose.uniform(0.0002, 0.01)
    voters.thread_delay_s = lambda: choose.choice([0.0, 0.002, 0.05])
    holder = 0
    voters.start(1, 2, 3)
    for _ in range(choose.randint(2, 8)):
        voters.run(choose.choice([0.01, 0.03, 0.05, 0.07, 0.1]))
        victim = choose.randint(1, 3)
        voters.end(victim)
        if choose.random() < 0.7 and victim != holder:
            voters.wipe(victim)
            if choose.random() < 0.5 and not holder:
                holder = victim
                give_metadata(voters.disks[victim], [[b"of %d" % victim]])
        voters.start(victim)
        check_agreement(voters)
    voters.run(3)
    for node_id in (1, 2, 3):
        voters.end(node_id)
    voters.start(1, 2, 3)
    voters.run(3)
    state = check_agreement(voters)
    assert state is not None, {n: voter.failures for n, voter in voters.running.items()}
    for voter in state.voters:
        if voter.directory_id == voters.directory_ids[voter.node_id]:
            assert voters.running[voter.node_id].formed == state, "every voter of the quorum has formed it"


def check_agreement(voters: Voters) -> QuorumState | None:
    """What the disks say: one quorum at most, with one beginning."""
    found = []
    for node_id, disk in voters.disks.items():
        state = read_quorum_state(disk, DIRECTORY)
        if state is not None and state.is_formed:
            found.append((state, voters.running[node_id].genesis))
    assert all(one == found[0] for one in found)
    return found[0][0] if found else None


def prepared_state(stage: int, attempt: bytes, *, seed_id: int = 1, old_two: bool = False) -> QuorumState:
    voters = [VoterRecord(n, f"n{n}", PORT, directory_of(n)) for n in (1, 2, 3)]
    if old_two:
        voters[1] = VoterRecord(2, "n2", PORT, directory_of(77))
    return QuorumState(stage=stage, attempt=attempt, cluster_id="c", seed_id=seed_id, voters=voters)


def test_a_prepared_attempt_is_kept_until_its_seed_abandons_it() -> None:
    voters = Voters()
    first = bytes(range(16))
    write_quorum_state(voters.disks[1], DIRECTORY, prepared_state(FORMING, first, old_two=True))
    write_quorum_state(voters.disks[3], DIRECTORY, prepared_state(PREPARED, first, old_two=True))
    give_metadata(voters.disks[2], [[b"of the new seed"]])
    voters.start(1, 2, 3)
    voters.running[1].runtime.thread_delay_s = lambda: 1.0
    voters.run(0.9)
    kept = read_quorum_state(voters.disks[3], DIRECTORY)
    assert kept is not None
    assert (kept.stage, kept.attempt) == (PREPARED, first), "node 1 might still decide it"
    voters.run(3)
    assert voters.check_formed().seed_id == 2


@pytest.mark.parametrize(
    ("stage", "attempt"), [(FORMING, b"same attempt...."), (PREPARED, b"another one.....")]
)
def test_a_voter_that_has_not_prepared_does_not_join_the_quorum(stage: int, attempt: bytes) -> None:
    voters = Voters()
    formed = prepared_state(FORMED, b"same attempt....")
    for node_id in (1, 2):
        write_quorum_state(voters.disks[node_id], DIRECTORY, formed)
    write_quorum_state(voters.disks[3], DIRECTORY, prepared_state(stage, attempt))
    voters.start(1, 2, 3)
    voters.run(2)
    assert voters.formed == [1, 2]
    assert "must not vote" in voters.running[3].failures[0]
