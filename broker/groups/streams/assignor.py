"""The assignor of streams groups, "sticky": which member shall have which tasks.

Members keep the tasks that they have, as far as each gets its share; else a member with a copy of the state gets the task; the others go
to the process with the fewest tasks for a thread (each thread is a member). Standby tasks go to processes that have the task in no other
role. Source: StickyTaskAssignor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

import msgspec

from barnabas.broker.groups.streams.topology import ConfiguredSubtopology
from barnabas.broker.groups.streams.values import TargetTasks, Task, each_task
from barnabas.runtime.slices import Steps


class Worker(msgspec.Struct, frozen=True):
    """A member: its process, and its tasks in the target assignment so far."""

    process_id: str
    before: TargetTasks


class _Process:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}  # tasks by member
        self.tasks: set[Task] = set()

    @property
    def load(self) -> float:
        return len(self.tasks) / len(self.counts)

    def least_loaded(self) -> str:
        return min(self.counts, key=lambda member_id: (self.counts[member_id], member_id))


class _Share:
    """How many tasks a member may keep: the tasks that are left over, divided among the members that have less."""

    def __init__(self, tasks: int, members: int) -> None:
        self._tasks = tasks
        self._members = members
        self.size = -(-tasks // members)

    def given(self, count: int) -> None:
        """A member has so many now."""
        if count == self.size:
            self._tasks -= count
            self._members -= 1
            self.size = -(-self._tasks // self._members) if self._members else 0


def assign(
    members: Mapping[str, Worker], subtopologies: Mapping[str, ConfiguredSubtopology], standby_count: int
) -> Steps[dict[str, TargetTasks]]:
    """The tasks of each member, in steps. `standby_count`: copies of the state of each task."""
    if not members:
        return {}
    return (yield from _Assignment(members, subtopologies, standby_count).tasks())


class _Assignment:
    def __init__(
        self,
        members: Mapping[str, Worker],
        subtopologies: Mapping[str, ConfiguredSubtopology],
        standby_count: int,
    ) -> None:
        self._members = members
        self._standby_count = standby_count
        self._active_tasks = _tasks(subtopologies)
        self._stateful_tasks = _tasks(
            {name: each for name, each in subtopologies.items() if each.is_stateful}
        )
        self._processes: dict[str, _Process] = {}
        self._had_active: dict[Task, str] = {}
        self._had_standby: dict[Task, list[str]] = {}
        self._active: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self._standby: dict[str, set[Task]] = {member_id: set() for member_id in members}
        self._active_share = _Share(len(self._active_tasks), len(members))
        every = len(self._active_tasks) + standby_count * len(self._stateful_tasks)
        self._share = _Share(every, len(members))

    def tasks(self) -> Steps[dict[str, TargetTasks]]:
        for member_id, member in sorted(self._members.items()):
            self._processes.setdefault(member.process_id, _Process()).counts[member_id] = 0
            for task in each_task(member.before.active):
                self._had_active[task] = member_id
            for task in each_task(member.before.standby):
                self._had_standby.setdefault(task, []).append(member_id)
            yield None
        yield from self._assign_active()
        if self._standby_count:
            yield from self._assign_standby()
        found: dict[str, TargetTasks] = {}
        for member_id in self._members:
            found[member_id] = TargetTasks(_sets(self._active[member_id]), _sets(self._standby[member_id]))
            yield None
        return found

    # -- active tasks

    def _assign_active(self) -> Steps[None]:
        left = []
        for task in sorted(self._active_tasks, key=lambda task: (task[1], task[0])):
            member_id = self._had_active.get(task)
            if member_id is None or not self._keep(member_id, task):
                left.append(task)
            yield None
        free = []
        for task in left:
            holder = self._least_loaded(self._had_standby.get(task, ()))
            if holder is None or not self._keep(holder, task):
                free.append(task)
            yield None
        queue = self._queue()
        for task in sorted(free):
            _, process_id = heappop(queue)
            process = self._processes[process_id]
            self._give(process.least_loaded(), task, self._active)
            heappush(queue, (process.load, process_id))
            yield None

    def _keep(self, member_id: str, task: Task) -> bool:
        """Whether the member's share has room for the task, which it then gets."""
        if self._count(member_id) >= self._active_share.size:
            return False
        self._give(member_id, task, self._active)
        return True

    # -- standby tasks

    def _assign_standby(self) -> Steps[None]:
        left: list[tuple[Task, int]] = []
        for task in sorted(self._stateful_tasks, key=lambda task: (task[1], task[0]), reverse=True):
            missing = self._standby_count
            while missing and self._keep_copy(task):
                missing -= 1
            if missing:
                left.append((task, missing))
            yield None
        queue = self._queue()
        for task, missing in sorted(left, reverse=True):
            self._copy(task, missing, queue)
            yield None

    def _keep_copy(self, task: Task) -> bool:
        """The process that ran the task, or one that has a copy, keeps its state."""
        active = self._had_active.get(task)
        holders = [active] if active is not None else []
        if active is None or not self._may_copy(active, task):
            holders = [each for each in self._had_standby.get(task, ()) if self._may_copy(each, task)]
        holder = self._least_loaded(holders)
        if holder is None:
            return False
        self._give(holder, task, self._standby)
        return True

    def _may_copy(self, member_id: str, task: Task) -> bool:
        return task not in self._process(member_id).tasks and self._count(member_id) < self._share.size

    def _copy(self, task: Task, count: int, queue: list[tuple[float, str]]) -> None:
        """Give copies to the processes with least load that do not have the task; fewer where there are not enough."""
        passed = []
        while count and queue:
            load, process_id = heappop(queue)
            process = self._processes[process_id]
            if task not in process.tasks:
                self._give(process.least_loaded(), task, self._standby)
                load = process.load
                count -= 1
            passed.append((load, process_id))
        for each in passed:
            heappush(queue, each)

    # -- members

    def _give(self, member_id: str, task: Task, tasks: dict[str, set[Task]]) -> None:
        process = self._process(member_id)
        process.tasks.add(task)
        count = process.counts[member_id] = process.counts[member_id] + 1
        tasks[member_id].add(task)
        if tasks is self._active:
            self._active_share.given(count)
        self._share.given(count)

    def _process(self, member_id: str) -> _Process:
        return self._processes[self._members[member_id].process_id]

    def _count(self, member_id: str) -> int:
        return self._process(member_id).counts[member_id]

    def _least_loaded(self, member_ids: Iterable[str]) -> str | None:
        return min(
            member_ids,
            key=lambda each: (self._process(each).load, self._count(each)),
            default=None,
        )

    def _queue(self) -> list[tuple[float, str]]:
        queue = [(process.load, process_id) for process_id, process in self._processes.items()]
        heapify(queue)
        return queue


def _tasks(subtopologies: Mapping[str, ConfiguredSubtopology]) -> list[Task]:
    return [(name, index) for name, each in subtopologies.items() for index in range(each.task_count)]


def _sets(tasks: set[Task]) -> dict[str, frozenset[int]]:
    found: dict[str, set[int]] = {}
    for subtopology_id, index in tasks:
        found.setdefault(subtopology_id, set()).add(index)
    return {subtopology_id: frozenset(indexes) for subtopology_id, indexes in found.items()}
