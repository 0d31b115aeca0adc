"""One example of every message, shared by the golden and the round-trip tests."""

from fedagent_protocol import messages as m
from fedagent_protocol.codec import Direction

RUN = "0123456789abcdef0123456789abcdef"
D1, D2, D3 = "a" * 64, "b" * 64, "c" * 64

_CONTEXT = m.ContextReport(
    run=RUN,
    seq=(3 << 32) + 7,
    available=True,
    price=750_000,
    features={"compute": 2.5, "rtt_s": 0.25},
)
_BOTH: tuple[m.Need | m.Chunk, ...] = (
    m.Need(run=RUN, round=4, digest=D1, ranges=((0, 4), (7, 8))),
    m.Chunk(run=RUN, round=4, digest=D1, index=2, data=b"\x00\x01\xff"),
)
_KEYS = m.MemberKeys(identity=bytes(32), mask=b"m" * 32, seal=b"s" * 32, signature=bytes(64))
_PROBES: tuple[m.Probe | m.ProbeReply, ...] = (
    m.Probe(nonce=5, reply_bytes=16, data=b"pad"),
    m.ProbeReply(nonce=5, data=b"pad"),
)

SAMPLES: dict[Direction, tuple[m.AnyMessage, ...]] = {
    Direction.AGENT_TO_EDGE: (
        m.Hello(agent="agent-1", software="fedagent 0.1.0"),
        _CONTEXT,
        m.Decline(
            run=RUN, round=4, reason=m.DeclineReason.SCHEMA, detail="model.features: 64, not 63"
        ),
        m.TaskNeed(run=RUN, digest=D3),
        m.UpdateOffer(
            run=RUN,
            round=4,
            seq=9,
            digest=D1,
            size=3,
            chunk_bytes=262_144,
            base=D2,
            task=D3,
            first=b"abc",
            context=_CONTEXT,
            stats=m.TrainStats(
                num_samples=40,
                iterations=5,
                dt_ms=20,
                lc_ms=310,
                arrivals=41,
                seconds_per_iteration=0.125,
                loss=1.5,
            ),
        ),
        m.Bye(reason="stopped"),
        m.Gone(),
        m.Opinion(run=RUN, round=4, model=D1, score=0.75, samples=120, metric="accuracy"),
        m.Volunteer(run=RUN, round=4),
        m.PeerSend(to="agent-2", body=b"sealed"),
        m.MaskKeys(run=RUN, round=4, keys=_KEYS),
        m.MaskShares(run=RUN, round=4, shares={"agent-2": bytes(148)}, commitment=bytes(32)),
        m.MaskOpening(run=RUN, round=4, shares={"agent-1": bytes(66)}),
        m.RevocationsNeed(number=1),
        *_BOTH,
        *_PROBES,
    ),
    Direction.EDGE_TO_AGENT: (
        m.EdgeBeacon(edge="edge-1", epoch=RUN),
        m.Welcome(run=RUN, edge="edge-1"),
        m.TrainOrder(
            run=RUN,
            round=4,
            task=D3,
            model=D2,
            size=22_000,
            chunk_bytes=262_144,
            iterations=5,
            deadline_ms=1500,
            give_up_ms=4000,
            credit=1,
            price=750_000,
            context_seq=7,
        ),
        m.TaskBody(run=RUN, digest=D3, body=b"\x80"),
        m.Receipt(
            run=RUN, round=4, digest=D1, status=m.ReceiptStatus.REJECTED, reason="non_finite"
        ),
        m.RoundClosed(run=RUN, round=4),
        m.OpinionCall(
            run=RUN, round=4, task=D3, model=D1, size=3, chunk_bytes=262_144, until_ms=5000, slot=5
        ),
        m.Neighbours(peers={"agent-2": 0.5, "agent-3": 1.0}),
        m.PeerDeliver(sender="agent-2", body=b"sealed"),
        m.MaskRoster(run=RUN, round=4, members={"agent-1": _KEYS}),
        m.MaskDelivery(run=RUN, round=4, shares={"agent-2": bytes(148)}),
        m.MaskAsk(run=RUN, round=4, survivors=("agent-1", "agent-2")),
        m.Revocations(number=2, crl=b"-----BEGIN X509 CRL-----"),
        *_BOTH,
        *_PROBES,
    ),
    Direction.EDGE_TO_COORDINATOR: (
        m.EdgeHello(edge="edge-1", epoch=RUN, broker="mqtt://127.0.0.1:1883"),
        m.EdgeStatus(run=RUN, epoch=RUN, agents=3, model=D2, counters={"non_finite": 1}),
        m.RoundColumns(
            run=RUN,
            round=4,
            epoch=RUN,
            known=0,
            new_ids=("agent-1",),
            features=("compute",),
            session=b"\0\0\0\0",
            price=b"\1" + b"\0" * 7,
            context_seq=b"\2" + b"\0" * 7,
            age_ms=b"\0\0\0\0",
            available=b"\1",
            values=b"\0\0\x80\x3f",
            model=D2,
        ),
        m.RoundReport(
            run=RUN,
            round=4,
            epoch=RUN,
            outcomes=(
                m.Outcome(
                    agent="agent-1",
                    status=m.OutcomeStatus.ARRIVED,
                    in_time=True,
                    used=True,
                    valid=True,
                    weight=40.0,
                    tau_ms=450,
                    ut_ms=120,
                    norm=0.5,
                    stats=m.TrainStats(dt_ms=20, lc_ms=310, num_samples=40),
                ),
                m.Outcome(
                    agent="agent-2", status=m.OutcomeStatus.MISSED, tau_ms=1500, censored=True
                ),
            ),
            model=D1,
            size=3,
            used=1,
            weight=40.0,
            first=b"abc",
            timing_ms={"collect": 451.5},
        ),
        m.Opinions(
            run=RUN,
            round=4,
            epoch=RUN,
            model=D1,
            known=1,
            new_ids=("agent-2",),
            session=b"\x01\x00\x00\x00",
            score=b"\x00\x00\x40\x3f",
            samples=b"\x78\x00\x00\x00\x00\x00\x00\x00",
            metric="accuracy",
            asked=2,
            reasons={"none": 1},
        ),
        m.Volunteers(
            run=RUN, round=4, epoch=RUN, known=2, new_ids=(), session=b"\x01\x00\x00\x00", asked=2
        ),
        m.EdgeMoments(
            run=RUN,
            epoch=RUN,
            model=D1,
            moments=b"\x00\x01\x01",
            agents=1,
            asked=2,
            reasons={"none": 1},
        ),
        m.Revocations(run=RUN, number=2, crl=b"-----BEGIN X509 CRL-----"),
        *_BOTH,
    ),
    Direction.COORDINATOR_TO_EDGE: (
        m.CoordinatorBeacon(coordinator="coordinator-1"),
        m.EdgeWelcome(run=RUN, coordinator="coordinator-1", task=D3, body=b"\x80"),
        m.GlobalModel(run=RUN, round=4, digest=D2, size=3, first=b"abc"),
        m.RoundOpen(run=RUN, round=4, epoch=RUN, known=2),
        m.RoundOrder(
            run=RUN,
            round=4,
            task=D3,
            assignments=(
                m.Assignment(agent="agent-1", iterations=5, price=750_000, context_seq=7),
            ),
            deadline_ms=1500,
            max_wait_ms=4000,
            min_updates=2,
            weighting=m.Weighting.UNIFORM,
            base=D2,
            norm_limit=100.0,
            want_model=True,
        ),
        m.ReportReceipt(run=RUN, round=4, too_late=True),
        m.RunEnded(run=RUN, reason="rounds"),
        m.OpinionOpen(run=RUN, round=4, model=D1, until_ms=5000, slot=5, epoch=RUN, known=1),
        m.OpinionClose(run=RUN, round=4),
        m.OpinionsReceipt(run=RUN, round=4),
        m.Revocations(number=2, crl=b"-----BEGIN X509 CRL-----", ids=("agent-9",)),
        m.RevocationsNeed(run=RUN, number=1),
        *_BOTH,
    ),
}

FLAT = [(d, message) for d, group in SAMPLES.items() for message in group]
