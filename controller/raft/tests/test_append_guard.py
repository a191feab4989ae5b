"""Appends that pass the guard have the effect that Raft's rules demand, on random logs."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from barnabas.controller.raft.files import JournalContent
from barnabas.controller.raft.journal import LibraryEntry, RaftJournal
from barnabas.controller.raft.messages import Append, Entry
from barnabas.controller.raft.transport import Contradiction, Fitted, fit_append


def journal_of(terms: list[int], first: int = 1) -> RaftJournal:
    """A log of entries with these terms; an entry's command follows from its index and term."""
    content = JournalContent()
    content.entries = [entry_of(index, term) for index, term in enumerate(terms, first)]
    return RaftJournal(content)


def entry_of(index: int, term: int) -> Entry:
    return Entry(index, term, b"\x00%d of %d" % (index, term))


def in_the_librarys_way(journal: RaftJournal, fitted: Fitted) -> list[LibraryEntry]:
    """It cuts its log behind the previous entry, whatever follows there, and adds what came."""
    kept = [entry for entry in journal.entries if entry[1] <= fitted.previous_index]
    assert kept, "the previous entry is there"
    assert kept[-1][1:] == (fitted.previous_index, fitted.previous_term)
    return kept + [(entry.command, entry.index, entry.term) for entry in fitted.entries]


@given(st.integers(0, 1 << 30))
def test_appends_follow_the_rules_of_raft(seed: int) -> None:
    random = Random(seed)
    # Two logs with a common beginning, part of which is committed, and here, perhaps, compacted.
    common = sorted(random.choices(range(4), k=random.randrange(1, 8)))
    committed = random.randrange(1, len(common) + 1)
    first = random.randrange(1, committed + 1)
    mine = common + sorted(random.choices(range(common[-1], 6), k=random.randrange(6)))
    leader = common + sorted(random.choices(range(common[-1], 8), k=random.randrange(6)))
    term = max(7, leader[-1])
    same = 0
    while same < min(len(mine), len(leader)) and mine[same] == leader[same]:
        same += 1
    # From where the terms differ the logs do; the same term at the same index was the same leader's.
    leader = leader[:same] + [entry_term + 10 for entry_term in leader[same:]]
    term += 10

    previous = random.randrange(1, len(leader) + 1)
    end = random.randrange(previous, len(leader) + 1)
    message = Append(
        term,
        random.randrange(30),
        previous,
        leader[previous - 1],
        [entry_of(index, leader[index - 1]) for index in range(previous + 1, end + 1)],
    )
    journal = journal_of(mine[first - 1 :], first)
    before = list(journal.entries)
    fitted = fit_append(message, journal, committed)

    if previous > same:
        assert isinstance(fitted, int)
        assert committed < fitted <= len(mine) + 1
        assert fitted <= previous, "it goes back"
        assert fitted > same or mine[fitted - 1] == mine[same] or fitted == len(mine) + 1, (
            "no further than a term"
        )
        return
    assert isinstance(fitted, Fitted)
    if end <= same:
        expected = before
    else:
        expected = [entry for entry in before if entry[1] <= same] + [
            (entry.command, entry.index, entry.term) for entry in message.entries if entry.index > same
        ]
    after = in_the_librarys_way(journal, fitted)
    assert after == expected
    assert fitted.commit_index == min(message.commit_index, end)
    said = fitted.next_index if fitted.next_index is not None else after[-1][1] + 1
    assert said == end + 1, "it answers for what was verified, no more"


def test_applied_entries_are_never_removed() -> None:
    journal = journal_of([1, 1, 1, 2])
    with pytest.raises(Contradiction, match="entry 3 has been committed"):
        fit_append(Append(5, 9, 2, 1, [entry_of(3, 4)]), journal, 3)


def test_an_entry_with_two_contents_is_detected() -> None:
    journal = journal_of([1, 1])
    with pytest.raises(Contradiction, match="not the same on two nodes"):
        fit_append(Append(5, 9, 1, 1, [Entry(2, 1, b"\x00something else")]), journal, 1)
