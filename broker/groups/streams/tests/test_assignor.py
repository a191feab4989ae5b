"""The sticky assignor: every task once, balanced, with as few moves as can be, and copies at other processes."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from barnabas.broker.groups.streams.assignor import Worker, assign
from barnabas.broker.groups.streams.topology import ConfiguredSubtopology, InternalTopic
from barnabas.broker.groups.streams.values import TargetTasks, Task, each_task
from barnabas.runtime.slices import run_through

CHANGELOG = (InternalTopic("changelog", 1, 1, ()),)


def subtopologies(*counts: int, stateful: bool = True) -> dict[str, ConfiguredSubtopology]:
    changelogs = CHANGELOG if stateful else ()
    return {
        str(number): ConfiguredSubtopology(count, ("source",), (), changelogs)
        for number, count in enumerate(counts)
    }


def run(
    processes: dict[str, str],
    tasks: dict[str, ConfiguredSubtopology],
    before: dict[str, TargetTasks] | None = None,
    standby_count: int = 0,
) -> dict[str, TargetTasks]:
    """`processes`: by member id."""
    had = before or {}
    workers = {
        member_id: Worker(process_id, had.get(member_id, TargetTasks()))
        for member_id, process_id in processes.items()
    }
    return run_through(assign(workers, tasks, standby_count))


def active(found: dict[str, TargetTasks]) -> dict[Task, str]:
    return {task: member_id for member_id, tasks in found.items() for task in each_task(tasks.active)}


def counts(found: dict[str, TargetTasks]) -> Counter[str]:
    return Counter({member_id: len(list(each_task(tasks.active))) for member_id, tasks in found.items()})


members = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from("PQR"), min_size=1)
shapes = st.lists(st.integers(1, 7), min_size=1, max_size=3)


@given(members, members, shapes, shapes, st.integers(0, 2))
def test_every_task_runs_once_and_its_copies_are_elsewhere(
    first: dict[str, str], then: dict[str, str], old: list[int], new: list[int], standby_count: int
) -> None:
    found = run(first, subtopologies(*old), standby_count=standby_count)
    found = run(then, subtopologies(*new), found, standby_count)
    tasks = {(str(number), index) for number, count in enumerate(new) for index in range(count)}
    assert sorted(each for every in found.values() for each in each_task(every.active)) == sorted(tasks)
    others = len(set(then.values())) - 1
    for task, runner in active(found).items():
        copies = [
            then[member_id]
            for member_id, every in found.items()
            for each in each_task(every.standby)
            if each == task
        ]
        assert len(copies) == len(set(copies)) == min(standby_count, others)
        assert then[runner] not in copies


@given(st.integers(1, 8), shapes)
def test_members_of_own_processes_have_equally_many(member_count: int, shape: list[int]) -> None:
    processes = {f"m{number}": f"p{number}" for number in range(member_count)}
    found = counts(run(processes, subtopologies(*shape)))
    assert max(found.values()) - min(found.values()) <= 1


@given(members, shapes, st.integers(0, 2))
def test_nothing_moves_where_nothing_changes(
    processes: dict[str, str], shape: list[int], standby_count: int
) -> None:
    """Not with several threads in some processes: then the first assignment has members that give up a task."""
    processes = {member_id: member_id for member_id in processes}
    found = run(processes, subtopologies(*shape), standby_count=standby_count)
    assert active(run(processes, subtopologies(*shape), found, standby_count)) == active(found)


@given(st.integers(1, 6), shapes)
def test_one_more_member_takes_its_share_alone(member_count: int, shape: list[int]) -> None:
    processes = {f"m{number}": f"p{number}" for number in range(member_count)}
    before = run(processes, subtopologies(*shape))
    after = active(run({**processes, "new": "new"}, subtopologies(*shape), before))
    moved = {task for task, member_id in active(before).items() if after[task] != member_id}
    assert all(after[task] == "new" for task in moved)
    assert len(moved) <= -(-sum(shape) // (member_count + 1))


def test_a_copy_takes_over() -> None:
    before = run({"a": "P", "b": "Q"}, subtopologies(4), standby_count=1)
    copies = set(each_task(before["b"].standby))
    after = run({"b": "Q", "c": "R"}, subtopologies(4), before, standby_count=1)
    assert not copies.isdisjoint(each_task(after["b"].active)) or counts(after)["b"] == 2


def test_stateless_tasks_have_no_copies() -> None:
    found = run({"a": "P", "b": "Q"}, subtopologies(3, stateful=False), standby_count=1)
    assert not any(every.standby for every in found.values())
