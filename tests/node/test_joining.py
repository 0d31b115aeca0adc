"""The words of joining: bounded, typed errors for anything else, and a code nobody can choose."""

import secrets
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedagent_node.errors import _JOIN_HINTS, JoinError
from fedagent_node.site.joining import (
    CODES,
    JOIN_VERSION,
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Answer,
    Granted,
    Invitation,
    JoinRequest,
    Opening,
    Pending,
    Refusal,
    Refused,
    code_of,
    commitment_to,
    framed,
    read_answer,
    read_opening,
    read_request,
    session_of,
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
    nonce=nonces,
    secret=st.binary(max_size=16),
    session=st.binary(max_size=32),
    software=short,
    signature=st.binary(max_size=64),
)
openings = st.builds(
    Opening, version=st.just(1), site=short, ca=st.binary(max_size=600), commitment=nonces
)
answers = st.one_of(
    st.builds(Granted, certificate=st.binary(max_size=600), name=short),
    st.builds(Pending, nonce=nonces),
    st.builds(Refused, reason=short),
)


@given(requests, openings, answers)
def test_what_is_said_is_understood(request: JoinRequest, opening: Opening, answer: Answer) -> None:
    for message, read in ((request, read_request), (opening, read_opening), (answer, read_answer)):
        data = framed(message)
        assert len(data) - LENGTH_BYTES == int.from_bytes(data[:LENGTH_BYTES], "big")
        assert len(data) <= MAX_FRAME_BYTES
        assert read(data[LENGTH_BYTES:]) == message


@given(st.one_of(st.binary(max_size=400), requests.map(lambda one: framed(one)[1:])))
def test_any_bytes_are_a_message_or_a_typed_error(data: bytes) -> None:
    for read in (read_request, read_opening, read_answer):
        try:
            read(data)
        except JoinError as error:
            assert error.reason == "malformed"


@given(requests, st.integers(0, 2000), st.integers(0, 7))
def test_a_flipped_bit_is_another_request_or_none(
    request: JoinRequest, where: int, bit: int
) -> None:
    body = bytearray(framed(request)[LENGTH_BYTES:])
    body[where % len(body)] ^= 1 << bit
    opening = Opening(version=1, site="s", ca=b"", commitment=bytes(32))
    try:
        found = read_request(bytes(body))
    except JoinError:
        return
    same = msgspec.structs.replace(found, signature=b"").signed(b"leaf", opening) == request.signed(
        b"leaf", opening
    )
    assert not same or found.signature != request.signature or found == request


@given(requests, nonces)
def test_a_signature_is_for_one_service_and_one_connection(
    request: JoinRequest, commitment: bytes
) -> None:
    here = Opening(version=1, site="s", ca=b"", commitment=bytes(32))
    there = Opening(version=1, site="s", ca=b"", commitment=commitment)
    assert request.signed(b"a", here) != request.signed(b"b", here)
    assert (request.signed(b"a", here) == request.signed(b"a", there)) == (commitment == bytes(32))


@given(st.binary(max_size=600), nonces, nonces, nonces)
def test_a_code_is_six_digits_of_everything(
    ca: bytes, public: bytes, ours: bytes, theirs: bytes
) -> None:
    code = code_of(ca, public, ours, theirs)
    assert len(code) == 6
    assert code.isdigit()
    assert code == code_of(ca, public, ours, theirs)
    assert commitment_to(theirs) != theirs
    assert len(session_of(ours, theirs)) == 16


def test_codes_are_spread_evenly() -> None:
    public = bytes(32)
    found = [int(code_of(b"ca", public, secrets.token_bytes(32), bytes(32))) for _ in range(4000)]
    # Chi-square over ten bins, 9 degrees of freedom: 40 has a probability below 1e-5.
    bins = [
        sum(CODES // 10 * i <= code < CODES // 10 * (i + 1) for code in found) for i in range(10)
    ]
    assert sum((count - 400) ** 2 / 400 for count in bins) < 40


def test_who_stands_between_meets_the_code_by_chance_alone() -> None:
    """He has his own authority towards the device, and his own key towards the site."""
    device, rogue_key, tries, met = b"d" * 32, b"r" * 32, 3000, 0
    for _ in range(tries):
        ours, theirs = secrets.token_bytes(32), secrets.token_bytes(32)
        # He sees the site's commitment, then has to choose his nonce before it is opened; to the
        # device he has to commit before he knows its nonce.
        his_to_device, his_to_site = secrets.token_bytes(32), secrets.token_bytes(32)
        at_device = code_of(b"rogue", device, ours, his_to_device)
        at_site = code_of(b"site", rogue_key, his_to_site, theirs)
        met += at_device == at_site
    assert met <= 1


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


@given(invitations)
def test_an_invitation_is_one_word(invitation: Invitation) -> None:
    text = invitation.text()
    assert " " not in text
    assert "\n" not in text
    assert Invitation.parse(f" {text}\n") == invitation


@given(st.one_of(st.text(max_size=200), st.binary(max_size=90).map(lambda b: f"fedagent:{b!r}")))
def test_any_other_word_is_a_typed_error(text: str) -> None:
    with pytest.raises(JoinError):
        Invitation.parse(text)


@given(invitations, st.integers(1, 40))
def test_a_cut_invitation_is_none(invitation: Invitation, lost: int) -> None:
    text = invitation.text()
    with pytest.raises(JoinError):
        Invitation.parse(text[:-lost] if len(text) > lost else "")


def test_every_refusal_has_its_words_and_mend() -> None:
    refusals = get_args(Refusal)
    assert _JOIN_HINTS.keys() >= {*refusals}
    for reason in refusals:
        error = JoinError(reason)
        assert error.words
        assert error.hint
        assert str(error).count("\n") == 0
    assert "later" in str(JoinError("later\nrelease"))
