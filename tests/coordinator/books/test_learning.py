"""What a policy learnt survives a restart, bit for bit; stored bytes are checked."""

import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from msgspec import structs

from fedagent_coordinator.books import write as store_of
from fedagent_coordinator.books.records import pack, unpack, unpack_arrays
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.decision import Learning
from fedagent_coordinator.core.effects import Controls, Reserve
from fedagent_coordinator.core.outcomes import SILENT, endings_of
from fedagent_coordinator.core.trust import evidence
from fedagent_coordinator.errors import PolicyError, StoreDamagedError
from fedagent_coordinator.policies import Feedback, Purpose, RoundView, create, round_rng
from fedagent_coordinator.policies.base import Selection
from fedagent_protocol.messages import LEFT, UNANSWERED, OutcomeStatus
from tests.fakes.rounds import random_feedback, random_view
from tests.fakes.stored_runs import begun, small_result

ROUNDS = 12


def _live(store: Books, run_id: str, *, snapshot_at: Collection[int]) -> dict[str, bytes]:
    """Let cocs live through rounds of the store; return its state as bytes."""
    policy = create("cocs")
    decides = Learning(policy)
    for t in range(1, ROUNDS + 1):
        rng = np.random.default_rng(t)
        view = random_view(rng, t, clients=8, edges=2)
        selection = policy.select(view, round_rng(1, t, Purpose.SELECT))
        plan = Reserve(
            round=t,
            view=view,
            selection=selection,
            context_seq=np.zeros(len(selection.pairs), dtype=np.int64),
        )
        store.reserve(run_id, plan, policy="cocs")
        if t == 5:  # a round that a restart voids teaches nothing
            store.void_open_rounds(run_id, "restart")
            continue
        result = small_result(plan, set(range(0, 8, 2)))
        store.settle(run_id, result)
        decides.learn(result.feedback, plan.controls)
        if t in snapshot_at:
            store.snapshot(run_id, t, decides.state())
    return {"state": pack(policy.state())}


@pytest.mark.parametrize("snapshot_at", [0, 4, ROUNDS])
def test_snapshot_and_feedbacks_restore_bit_equal(tmp_path: Path, snapshot_at: int) -> None:
    with Books(tmp_path) as store:
        run_id = begun(store, total_micro=None).run_id
        before = _live(store, run_id, snapshot_at=[snapshot_at])
    with Books(tmp_path) as store:
        policy = create("cocs")
        replayed = store.read.restore(run_id, Learning(policy))
        assert store.read.ledger.verify().problems == ()
    assert pack(policy.state()) == before["state"]
    assert replayed == {0: ROUNDS - 1, 4: ROUNDS - 5, ROUNDS: 0}[snapshot_at]


def test_a_snapshot_of_another_policy_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run_id = begun(store, total_micro=None).run_id
        _live(store, run_id, snapshot_at=[4])
        with pytest.raises(PolicyError, match="state of random"):
            store.read.restore(run_id, Learning(create("random")))
        store.connection.execute("UPDATE snapshots SET state = x'80'")
        with pytest.raises(StoreDamagedError):
            store.read.restore(run_id, Learning(create("cocs")))


@pytest.mark.parametrize(
    ("first", "room", "kept"),
    [
        (50, 1 << 26, [*range(200, 2000, 200), 1950, 2000]),
        (50, 0, [1950, 2000]),
        # Where no number is a multiple: the last of each 200 rounds, and the newest two.
        (57, 1 << 26, [157, *range(357, 1800, 200), 1907, 1957]),
    ],
)
def test_old_snapshots_stay_at_equal_distances_unless_they_are_large(
    store: Books, run: str, monkeypatch: pytest.MonkeyPatch, first: int, room: int, kept: list[int]
) -> None:
    monkeypatch.setattr(store_of, "_SNAPSHOT_BYTES", room)
    for t in range(first, 2001, 50):
        store.snapshot(run, t, {"x": np.arange(t)})
    rows = store.connection.execute("SELECT round FROM snapshots ORDER BY round")
    assert [row[0] for row in rows] == kept


def test_an_old_round_is_restored_from_the_snapshot_before_it(tmp_path: Path) -> None:
    with Books(tmp_path) as store:
        run_id = begun(store, total_micro=None).run_id
        _live(store, run_id, snapshot_at=(4, 8))
        restored, replayed = Learning(create("cocs")), Learning(create("cocs"))
        store.read.restore(run_id, restored, before=8)
        for one in store.read.logged(run_id, before=8):
            if one.feedback is not None:
                replayed.learn(one.feedback, one.controls)
    assert pack(restored.state()) == pack(replayed.state())


@settings(max_examples=25)
@given(
    st.dictionaries(
        st.text(max_size=8),
        npst.arrays(
            dtype=st.sampled_from(["?", "i1", "i4", "<i8", ">i8", "u4", "f4", "f8"]),
            shape=npst.array_shapes(min_dims=0, min_side=0, max_side=4),
        ),
        max_size=4,
    )
)
def test_arrays_come_back_bit_equal(
    arrays: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]],
) -> None:
    back = unpack_arrays(pack(arrays))
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].shape == array.shape
        assert back[name].dtype == array.dtype.newbyteorder("=")
        assert back[name].tobytes() == array.astype(array.dtype.newbyteorder("=")).tobytes()
        assert back[name].flags.writeable


@pytest.mark.parametrize("bare", [False, True])
def test_a_feedback_is_rebuilt_bit_for_bit(tmp_path: Path, *, bare: bool) -> None:
    with Books(tmp_path) as store:
        run_id = begun(store, total_micro=None, clients=12, edges=4).run_id
        given = []
        for t in range(1, 30):
            rng = np.random.default_rng(t)
            view = random_view(rng, t, clients=12, edges=4)
            selection = create("random").select(view, rng)
            feedback = replace(random_feedback(rng, view, selection), opinions=None)
            if bare:
                feedback = replace(feedback, psi=None)
            else:
                count = np.arange(len(feedback.pairs), dtype=np.int64)
                seconds = np.where(feedback.unpaid, np.nan, feedback.tau_s)
                feedback = replace(feedback, steps=count, iterations=count + 1, train_s=seconds)
            seq = np.zeros(len(selection.pairs), dtype=np.int64)
            plan = Reserve(round=t, view=view, selection=selection, context_seq=seq)
            store.reserve(run_id, plan, policy="random")
            result = small_result(plan, set())
            status = tuple(rng.choice(list(OutcomeStatus), len(feedback.pairs)).tolist())
            reason = tuple(rng.choice(["", SILENT, UNANSWERED, LEFT], len(feedback.pairs)).tolist())
            ending = endings_of(status, reason, feedback.X, feedback.unpaid)
            loss = rng.choice([0.25, 1.5, np.nan], len(feedback.pairs))
            rms = rng.choice([0.1 + 0.2, np.nan], len(feedback.pairs))
            believed = evidence(
                feedback.view.pair_edge[feedback.pairs].astype(np.int64),
                norm=result.details.norm,
                samples=feedback.num_samples,
                reason=reason,
                valid=~feedback.unpaid,
            )
            feedback = replace(feedback, ending=ending, loss=loss, loss_rms=rms, evidence=believed)
            details = replace(result.details, status=status, reason=reason)
            store.settle(run_id, structs.replace(result, feedback=feedback, details=details))
            given.append(feedback)
        found = [one.feedback for one in store.read.logged(run_id) if one.feedback is not None]
        assert store.read.ledger.verify().problems == ()
    assert len(found) == len(given)
    for one, other in zip(given, found, strict=True):
        for field in fields(Feedback):
            if field.name == "view":
                continue
            value, again = getattr(one, field.name), getattr(other, field.name)
            if isinstance(value, np.ndarray):
                assert (value.dtype, value.tobytes()) == (again.dtype, again.tobytes()), field.name
            elif len(one.pairs) or value is not None:
                assert value == again, field.name


@given(st.binary(max_size=200))
def test_foreign_bytes_are_a_record_or_a_typed_error(data: bytes) -> None:
    for kind in (RoundView, Selection, Controls, dict):
        for given_ in (data, zlib.compress(data)):
            with suppress(StoreDamagedError):
                unpack(given_, kind)


def test_objects_and_arrays_without_their_bytes_are_refused() -> None:
    with pytest.raises(TypeError, match="not kept"):
        pack({"x": np.array([object()])})
    whole = zlib.decompress(pack({"x": np.arange(3)}))
    for changed in (whole.replace(b"<i8", b"<i4"), whole.replace(b"<i8", b"|O8")):
        with pytest.raises(StoreDamagedError, match="cannot be read"):
            unpack_arrays(zlib.compress(changed))
