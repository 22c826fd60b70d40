import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.errors import DataError
from training.registry.history import HISTORY_FILE, Change, append_change, entries_in_use, read_history

# What happens to a registry: a promotion of one of four bundles or a rollback, each completed or interrupted.
EVENTS = st.lists(st.tuples(st.sampled_from(["a", "b", "c", "d", "rollback"]), st.booleans()), max_size=30)


@given(EVENTS)
def test_rollbacks_follow_what_happened_not_what_was_interrupted(events):
    changes, stack = [], []
    for wanted, completes in events:
        current = stack[-1] if stack else None
        if wanted == "rollback":
            if len(stack) < 2:
                continue
            changes.append(Change(time="", action="rollback", before=current, after=stack[-2]))
            stack = stack[:-1] if completes else stack
        elif wanted != current:
            changes.append(Change(time="", action="promote", before=current, after=wanted))
            stack = [*stack, wanted] if completes else stack
    assert entries_in_use(changes, stack[-1] if stack else None) == stack


def test_lines_are_read_as_they_were_written(tmp_path):
    changes = [
        Change(time="2026-11-22T00:00:00Z", action="promote", before=None, after="a"),
        Change(time="2026-11-22T01:00:00Z", action="promote", before="a", after="b", report="reports/b.html"),
    ]
    for change in changes:
        append_change(tmp_path, change)
    assert list(read_history(tmp_path)) == changes
    lines = (tmp_path / HISTORY_FILE).read_text().splitlines()
    assert lines[0] == '{"time":"2026-11-22T00:00:00Z","action":"promote","from":null,"to":"a"}'


def test_a_history_without_its_first_lines_leads_to_nothing_earlier():
    assert entries_in_use([Change(time="", action="rollback", before="b", after="a")], "a") == []


def test_registry_without_a_history_has_no_changes(tmp_path):
    assert read_history(tmp_path) == ()


def test_damaged_history_is_an_error(tmp_path):
    (tmp_path / HISTORY_FILE).write_text('{"time":')
    with pytest.raises(DataError, match="cannot be read"):
        read_history(tmp_path)
