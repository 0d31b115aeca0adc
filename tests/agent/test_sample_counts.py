"""Counts of samples survive a stream that is opened anew."""

from fedagent_agent.core.sample_counts import SampleCounts, in_words


def test_a_stream_that_is_opened_anew_adds_to_what_was_counted() -> None:
    counts = SampleCounts()
    assert not counts.note({})
    assert counts.note({"bad_json": 3})
    assert not counts.note({"bad_json": 3})
    assert counts.note({"bad_json": 5, "dropped": 1})
    assert counts.note({"bad_json": 2})
    assert not counts.note({})
    assert counts.note({"bad_json": 2})
    assert counts.totals == {"bad_json": 9, "dropped": 1}


def test_reasons_are_said_in_words() -> None:
    assert in_words("bad_json", 12) == "12 samples were refused: bad_json"
    assert "minibatch" in in_words("strsaga_replaced", 1)
