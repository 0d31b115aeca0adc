"""Updates that the ends of rounds interrupt: the rest is asked for, and each counts once."""

from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from fedagent_protocol.transfer import PIECE_BYTES

from . import World, m

Make = Callable[..., World]
LARGE = ("model.features=27000", "rounds.count=9", "rounds.merge_every=1", "rounds.min_updates=1")
A_ROUND = 600_000
"""Bytes that come through: about half of an update of this model."""
FAR = "agent-0"


@pytest.mark.parametrize(("kills", "away"), [((), ()), (("edge", 5.0), ()), ((), (9.0, 6.0))])
def test_chunks_of_a_round_count_in_a_later_one_and_an_update_once(
    world: Make, world_seed: int, kills: tuple[str, float] | tuple[()], away: tuple[float, ...]
) -> None:
    here = world(sets=(*LARGE, "rounds.every_s=4"), seed=world_seed)
    sent: defaultdict[str, Counter[int]] = defaultdict(Counter)
    through: Counter[int] = Counter()

    def slowly(chunk: m.Chunk) -> list[m.Chunk]:
        through[chunk.round] += len(chunk.data)
        if through[chunk.round] > A_ROUND:
            return []
        count = -(-len(chunk.data) // PIECE_BYTES)
        sent[chunk.digest].update(range(chunk.index, chunk.index + count))
        return [chunk]

    here.lies(FAR, "chunk", slowly)
    if kills:
        here.kill(kills[0], after=kills[1])
    if away:
        here.part(FAR, after=away[0], seconds=away[1])
    played = here.run()
    valid = {
        one.message.round: outcome
        for one in played.wire.said(m.RoundReport)
        for outcome in one.message.outcomes
        if outcome.valid and played.here.names[outcome.agent] == FAR
    }
    assert len(valid) >= 2
    assert all(one.made_in for one in valid.values()), "each is of an earlier round"
    assert len({one.made_in for one in valid.values()}) == len(valid)
    for number, one in valid.items():
        assert 0 < number - one.made_in <= 5
        assert one.weight == pytest.approx((1.0 + number - one.made_in) ** -0.5)
        assert one.used
        assert one.stats.dt_ms == one.stats.lc_ms == 0, "this round has not seen them"
    if not kills:
        assert all(set(count.values()) == {1} for count in sent.values()), "no chunk twice"
