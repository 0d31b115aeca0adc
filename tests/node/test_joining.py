"""The words of joining: bounded, typed errors for anything else, and a code nobody can choose."""

from typing import get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedagent_node.errors import _JOIN_HINTS, JoinError
from fedagent_node.site.joining import (
    JOIN_VERSION,
    Invitation,
    JoinAnswer,
    JoinRequest,
    Refusal,
    code_of,
    read,
    read_code,
)

nonces = st.binary(min_size=32, max_size=32)
short = st.text(max_size=64)
requests = st.builds(
    JoinRequest,
    version=st.just(JOIN_VERSION),
    public=nonces,
    role=st.sampled_from(["agent", "edge"]),
    site=short,
    name=short,
    secret=st.binary(max_size=16),
    software=short,
    signature=st.binary(max_size=64),
)


@given(
    st.one_of(st.binary(max_size=400), requests.map(lambda one: msgspec.msgpack.encode(one)[1:]))
)
@settings(max_examples=30)
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    for wanted in (JoinRequest, JoinAnswer):
        try:
            read(wanted, data)
        except JoinError as error:
            assert error.reason == "malformed"


@given(requests, requests)
@settings(max_examples=30)
def test_a_signature_is_for_one_request_to_one_service(one: JoinRequest, two: JoinRequest) -> None:
    assert one.signed(b"a") != one.signed(b"b")
    unsigned = [msgspec.structs.replace(each, signature=b"") for each in (one, two)]
    assert (one.signed(b"a") == two.signed(b"a")) == (unsigned[0] == unsigned[1])


def test_a_code_is_of_both_keys_and_however_it_is_typed() -> None:
    ours, theirs = bytes(32), bytes(31) + b"1"
    code = code_of(b"ca", ours)
    assert code != code_of(b"ca", theirs)
    assert code != code_of(b"rogue", ours)
    assert [len(part) for part in code.split("-")] == [4, 4, 4]
    for typed in (code, code.lower(), code.replace("-", ""), code.replace("-", " ")):
        assert read_code(typed) == code
    assert read_code("") == ""


invitations = st.builds(
    Invitation,
    version=st.just(JOIN_VERSION),
    secret=st.binary(min_size=16, max_size=16),
    fingerprint=nonces,
    site=short,
    role=st.sampled_from(["agent", "edge"]),
    name=short,
    places=st.lists(st.sampled_from(["10.0.0.1:8871", "[fd00::1]:8871"]), max_size=4).map(tuple),
)


@given(invitations, st.integers(1, 40))
@settings(max_examples=30)
def test_an_invitation_is_one_word_and_a_cut_one_is_none(invitation: Invitation, lost: int) -> None:
    text = invitation.text()
    assert " " not in text
    assert "\n" not in text
    assert Invitation.parse(f" {text}\n") == invitation
    with pytest.raises(JoinError):
        Invitation.parse(text[:-lost] if len(text) > lost else "")


def test_every_refusal_has_its_words_and_hint() -> None:
    refusals = get_args(Refusal)
    assert _JOIN_HINTS.keys() >= {*refusals}
    for reason in refusals:
        error = JoinError(reason)
        assert error.words
        assert error.hint
        assert str(error).count("\n") == 0
    assert "later" in str(JoinError("later\nrelease"))
