"""The regular expressions that members subscribe with: which topics they match.

All of a group are resolved one after the other, as a pattern may take some MB, in short turns, against the names of all topics. That is
due when one has not been resolved, when topics were created since, or after group.consumer.regex.refresh.interval.ms; looked at with each
heartbeat of a member that has one, and at most every REFRESH_MIN_MS. Until then a new one matches nothing. Topics that the member whose
heartbeat it was may not describe are left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from barnabas.broker.coordinator.re2_parser import PatternError
from barnabas.broker.coordinator.re2_pattern import Pattern
from barnabas.broker.groups.consumer.values import Key, ResolvedExpression
from barnabas.broker.groups.modern.draft import Draft
from barnabas.broker.groups.modern.lifecycle import log_failure
from barnabas.broker.groups.modern.values import is_recent
from barnabas.runtime.slices import StepQueue, Steps
from barnabas.wire.errors import ErrorCode

if TYPE_CHECKING:
    from barnabas.broker.groups.consumer.group import ConsumerGroup
    from barnabas.broker.groups.consumer.lifecycle import ConsumerGroups

log = logging.getLogger(__name__)

REFRESH_MIN_MS: Final = 10_000
# Of names: they are written in one batch of records, for which max.message.bytes is 1 MB unless it is set.
RESULT_BYTES_MAX: Final = 4 * 1024 * 1024
MayDescribe = Callable[[str], bool]  # whether a member may see the topic of this name
_Topics = dict[str, set[str]]  # by expression


class TooManyMatches(Exception):
    """See RESULT_BYTES_MAX."""


class ExpressionResolver:
    """Resolves the expressions of the groups of one shard."""

    def __init__(self, groups: ConsumerGroups, work: StepQueue) -> None:
        self._groups = groups
        self._store = groups.store
        self._runtime = groups.runtime
        self._configs = groups.configs
        self._interval_ms = groups.settings.group_consumer_regex_refresh_interval_ms
        self._queue = work
        # The offset of the metadata in which a topic was last created.
        self.topics_created_at = groups.configs.image().offset

    def refresh(self, group_id: str, may_describe: MayDescribe) -> None:
        """Resolve the group's expressions if that is due."""
        group = self._store.consumer(group_id)
        if group is None or not self.is_due(group_id):
            return
        group.is_resolving = True
        version, now_ms = self._configs.image().offset, self._runtime.time_ms()

        def done(found: _Topics | None, error: BaseException | None) -> None:
            group.is_resolving = False
            if error is not None or found is None:
                group.resolving_failed_ms = self._runtime.time_ms()
                log.error("Group %s: its regular expressions can't be resolved: %s", group_id, error)
            elif self._store.consumer(group_id) is group:
                self._resolved(group, found, version, now_ms)

        self._queue.add(self._resolve(list(group.expressions), may_describe), done)

    def is_due(self, group_id: str) -> bool:
        """Whether the group has expressions that are to be resolved now."""
        group = self._store.consumer(group_id)
        return (
            group is not None and bool(group.expressions) and not group.is_resolving and self._is_old(group)
        )

    def _is_old(self, group: ConsumerGroup) -> bool:
        now_ms = self._runtime.time_ms()
        if is_recent(group.resolving_failed_ms, REFRESH_MIN_MS, now_ms):
            return False
        if not group.resolved:
            return True
        last = next(iter(group.resolved.values()))
        if is_recent(last.timestamp_ms, REFRESH_MIN_MS, now_ms):
            return False
        return (
            any(expression not in group.resolved for expression in group.expressions)
            or last.version < self.topics_created_at
            or not is_recent(last.timestamp_ms, self._interval_ms, now_ms)
        )

    def _resolve(self, expressions: list[str], may_describe: MayDescribe) -> Steps[_Topics]:
        names = list(self._configs.image().topics)
        found: _Topics = {expression: set() for expression in expressions}
        size = 0
        for expression, matched in found.items():
            try:
                pattern = yield from Pattern.compile(expression)
            except PatternError as error:  # of a log that another release has written
                log.error("the regular expression %r is passed over: %s", expression, error)
                continue
            for name in names:
                if (yield from pattern.matches(name)) and may_describe(name):
                    matched.add(name)
                    size += len(name)
                    if size > RESULT_BYTES_MAX:
                        raise TooManyMatches(f"the names of the topics that match have over {size} bytes")
                yield None
        return found

    def _resolved(self, group: ConsumerGroup, found: _Topics, version: int, now_ms: int) -> None:
        draft = Draft(group)
        is_changed = False
        for expression, topics in found.items():
            if not group.expressions[expression]:
                continue  # its last member has left
            before = group.resolved.get(expression)
            is_changed |= topics != (before.topics if before is not None else set())
            resolved = ResolvedExpression(frozenset(topics), version, now_ms)
            draft.write(Key.REGULAR_EXPRESSION, expression, resolved)
        self._groups.changes.update_epoch(draft, is_changed=is_changed)

        def appended(error: ErrorCode) -> None:
            if error:
                group.resolving_failed_ms = self._runtime.time_ms()
                log_failure(group.group_id, "write the topics of its regular expressions", error)

        self._groups.commit(draft, appended)
