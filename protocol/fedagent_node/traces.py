"""What the rounds of a role took, for OpenTelemetry: spans over OTLP/HTTP, made from its events.

The ids follow from run, round and edge, so that the spans of all roles are one trace of a round
although no message names one. On where the environment names an endpoint; needs the extra ``otel``.
"""

import asyncio
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise
from numbers import Real
from types import MappingProxyType
from urllib.parse import urlsplit

from fedagent_protocol import VERSION
from fedagent_protocol.extras import how_to_add

from .address import is_loopback
from .effects import Emit

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
"""Variables that say where traces go, as OpenTelemetry has them; the first that is set counts."""
STEPS = ("observe", "decide", "reserve", "train", "settle", "evaluate", "merge")
"""Of a coordinator's round, in their order; they follow each other without a gap."""
FLUSH_S = 2.0
"""How long the end of a process waits for spans that are not yet sent."""
_STEPS_OF = {"training": "download", "update": "train", "receipt": "upload"}
"""What an agent's event ends; others end the round without an update."""
_OPEN = 64
_NS = 1_000_000_000


def endpoint_of(environment: Mapping[str, str]) -> str:
    """Return where traces are sent; empty for nowhere."""
    return next((environment[name] for name in ENDPOINTS if environment.get(name)), "")


def hindrance(endpoint: str, *, insecure: bool) -> str:
    """Return why traces cannot be sent there, with the hint; empty if they can."""
    place = urlsplit(endpoint)
    if place.scheme not in {"http", "https"} or not place.hostname:
        return f"{ENDPOINTS[1]} is no http:// or https:// address: http://127.0.0.1:4318"
    if place.scheme == "http" and not (insecure or is_loopback(place.hostname)):
        return (
            f"{place.hostname} is on another machine and the URL is not encrypted: use https, or "
            "--insecure"
        )
    found = False
    with suppress(ModuleNotFoundError):  # of a parent
        found = find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    if not found:
        return f"they need opentelemetry: {how_to_add('otel')}"
    return ""


def trace_id(run: str, round_: int) -> int:
    """Return the id of the trace of a round, 128 bits, never 0."""
    return _hashed(f"{run}/{round_}", 16)


def span_id(run: str, round_: int, *names: str) -> int:
    """Return the id of a span in it, 64 bits; without names that of the coordinator's round."""
    return _hashed("/".join((run, str(round_), *names)), 8)


def _hashed(text: str, size: int) -> int:
    return int.from_bytes(hashlib.sha256(f"fedagent/{text}".encode()).digest()[:size]) or 1


class Traces:
    """The traces of one process; `exporter` is OTLP/HTTP to where the environment says."""

    def __init__(self, role: str, ident: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415 - an extra
            OTLPSpanExporter,
        )
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._role, self._id, self._run = role, ident, ""
        self._sink = BatchSpanProcessor(OTLPSpanExporter())
        self._resource = Resource.create(
            {
                "service.name": f"fedagent-{role}",
                "service.instance.id": ident,
                "service.version": VERSION,
            }
        )
        self._orders: OrderedDict[tuple[str, int], list[tuple[str, int]]] = OrderedDict()
        """By edge and round, an agent's steps so far, and when they ended."""

    def note(self, event: Emit) -> None:
        """Take in one event of the role."""
        fields, now = event.fields, time.time_ns()
        match event.name:
            case "ready":
                self._run = str(fields.get("run", ""))
            case "round":
                self._coordinated(fields, now)
            case "round_closed":
                self._collected(fields, now)
            case "ordered" | "training" | "update" | "receipt" | "declined" | "abandoned" if (
                "edge" in fields
            ):
                self._worked(event.name, fields, now)
            case _:
                pass

    def _coordinated(self, fields: Mapping[str, object], now: int) -> None:
        """Show a coordinator's round: its steps end now, one after the other."""
        took, of = fields["timing_ms"], (self._run, int(str(fields["round"])))
        assert isinstance(took, Mapping)
        steps = [(name, round(float(took[name]) * 1e6)) for name in STEPS if name in took]
        at = now - sum(ns for _, ns in steps)
        self._span("round", of, (), None, (at, now), _plain(fields))
        for name, ns in steps:
            self._span(name, of, (name,), (), (at, at + ns))
            at += ns

    def _collected(self, fields: Mapping[str, object], now: int) -> None:
        """Show an edge's round: it collects updates, then closes."""
        of = str(fields["run"]), int(str(fields["round"]))
        begin, closed = (now - round(_number(fields[key]) * _NS) for key in ("seconds", "close_s"))
        mine = (self._id,)
        self._span("edge round", of, mine, (), (begin, now), _plain(fields))
        self._span("collect", of, (*mine, "collect"), mine, (begin, closed))
        self._span("close", of, (*mine, "close"), mine, (closed, now))

    def _worked(self, name: str, fields: Mapping[str, object], now: int) -> None:
        """Note a step of an agent's round; show them all with the last."""
        edge, round_ = str(fields["edge"]), int(str(fields["round"]))
        if name == "ordered":
            self._orders[edge, round_] = [(str(fields["run"]), now)]
            while len(self._orders) > _OPEN:
                self._orders.popitem(last=False)
            return
        steps = self._orders.get((edge, round_))
        if steps is None:  # it began before this process
            return
        steps.append((_STEPS_OF.get(name, name), now))
        if name in {"training", "update"}:
            return
        del self._orders[edge, round_]
        (run, begin), mine = steps[0], (edge, self._id)
        of = run, round_
        facts = {"fedagent.end": str(fields.get("status", name))}
        self._span("device round", of, mine, (edge,), (begin, now), facts)
        for (_, since), (step, until) in pairwise(steps):
            self._span(step, of, (*mine, step), mine, (since, until))

    def _span(
        self,
        name: str,
        of: tuple[str, int],
        me: Sequence[str],
        parent: Sequence[str] | None,
        when: tuple[int, int],
        facts: Mapping[str, str | int | float] = MappingProxyType({}),
    ) -> None:
        """Hand on a span of a run's round, of that path of names, from and to nanoseconds."""
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
        from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

        def context(names: Sequence[str]) -> SpanContext:
            ids = trace_id(*of), span_id(*of, *names)
            return SpanContext(*ids, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))

        (run, round_), (begin, end) = of, when
        self._sink.on_end(
            ReadableSpan(
                f"{self._role}: {name}",
                context=context(me),
                parent=None if parent is None else context(parent),
                resource=self._resource,
                attributes={**facts, "fedagent.run": run, "fedagent.round": round_},
                start_time=begin,
                end_time=max(begin, end),
            )
        )

    async def close(self) -> None:
        """Send what is left, if that takes no longer than `FLUSH_S`."""
        thread = threading.Thread(target=self._sink.shutdown, name="traces", daemon=True)
        thread.start()
        await asyncio.to_thread(thread.join, FLUSH_S)


def open_traces(role: str, ident: str, *, insecure: bool) -> tuple[Traces | None, str]:
    """Return the traces of this process where the environment asks for them, or why there are none.

    That is no error: the variable may be meant for other programs.
    """
    endpoint = endpoint_of(os.environ)
    if not endpoint:
        return None, ""
    if problem := hindrance(endpoint, insecure=insecure):
        return None, problem
    return Traces(role, ident), ""


def _plain(fields: Mapping[str, object]) -> dict[str, str | int | float]:
    """Return what has one number, as attributes; no reasons in a peer's own words."""
    return {
        f"fedagent.{name}": value
        for name, value in fields.items()
        if isinstance(value, int | float) and name != "round"
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, Real) else 0.0
