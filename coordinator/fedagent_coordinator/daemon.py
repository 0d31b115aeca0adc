"""The coordinator as a process: its broker, its edges, and the end of its run."""

import asyncio
import functools
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from fedagent_coordinator.site.enrolment import Enrolment
from fedagent_coordinator.site.joining import JoinService
from fedagent_coordinator.site.standing import (
    Site,
    SiteWord,
    keep_word,
    open_site,
    own_certificate,
    stay_member,
)
from fedagent_coordinator.store import RunStore
from fedagent_node.address import BrokerAddress
from fedagent_node.discovery.advert import Advert
from fedagent_node.effects import EVERYBODY, Emit, Send
from fedagent_node.process import boot_id
from fedagent_node.shell import Shell
from fedagent_protocol import failpoints, topics
from fedagent_protocol.codec import Direction
from fedagent_protocol.messages import PROTOCOL_VERSION, kind
from fedagent_task.scoring.measures import measures_of

from .backup import refuse_half_restored
from .config import CoordinatorConfig
from .core.effects import Start
from .core.readiness import DECLINED, STATISTICS
from .runs import RunFinishedError, read_recipe
from .web.server import PageServer, forget_place, start_page

_log = logging.getLogger(__name__)

EDGES = "edges"
"""The link to the edges."""
JOBS = 4
"""Models that are checked, merged or evaluated side by side."""
NOTHING_LEARNT = (
    "NOTHING WAS LEARNT: none of the %d rounds used an update, so the model is still the "
    "initial one; `fedagent status --rounds 20` shows why"
)
_REVOKE = "if you do not trust the edge, revoke it: `fedagent devices revoke`"
_UNSIGNED = f"of {{agents}} agents without their signatures: these are ignored; {_REVOKE}"
SUSPICIOUS = {
    "strangers": "{agents} agents that have not joined the site: they get no orders and no "
    "payment; invite them with `fedagent devices invite`",
    "crowded": "so many agents that {agents} are ignored: spread the devices over more edges; if "
    "an attacker invents agents, let the devices join the site: `fedagent devices invite`",
    "opinions": f"opinions {_UNSIGNED}",
    "volunteers": f"volunteers {_UNSIGNED}",
    "terms": "terms of {agents} agents that differ from what these have signed: they are ignored; "
    + _REVOKE,
}
"""What is odd about the agents that an edge names, by the field `what`."""
POINTS = "coordinator."
"""Prefix of the crash points that `FEDAGENT_FAILPOINT` names."""


def checkpoint(name: str) -> None:
    """Die here if the environment asks for it."""
    failpoints.hit(POINTS + name)


class Daemon:
    """One coordinator process."""

    def __init__(self, config: CoordinatorConfig) -> None:
        self._config = config
        self._shell = Shell(config, fatal=(Exception,), show=self._show)
        self._over = asyncio.Event()
        self._others: tuple[str, ...] = ()
        self._rounds_in_vain: int | None = None
        self._join_port = 0

    async def run(self) -> None:
        """Work until the run is over, or until told to stop."""
        refuse_half_restored(Path(self._config.data_dir))
        read = read_recipe(self._config)
        self._recipe, self._task = read.recipe, read.task
        await self._shell.run(self._serve)
        if self._rounds_in_vain is not None:
            # Exit code 0 alone would look like a success.
            _log.warning(NOTHING_LEARNT, self._rounds_in_vain)

    async def _serve(self) -> None:
        config, shell = self._config, self._shell
        identity = shell.identify()
        me = identity.id
        try:
            self._store = RunStore(
                config,
                self._recipe,
                boot=boot_id(),
                checkpoint=checkpoint,
                clock=time.monotonic,
                task=self._task,
                identity=identity,
            )
        except RunFinishedError as finished:
            done, reason = finished.progress.rounds_done, finished.reason
            shell.emit(
                Emit("finished", {"run": finished.run_id, "rounds_done": done, "reason": reason})
            )
            raise
        engine = self._store.engine(me)
        shell.drive(engine, self._store, functools.partial(route, config.site, me), jobs=JOBS)
        if config.founds:
            site = open_site(shell.directory, config.site, days=config.certificate_days)
            stay_member(shell, site, identity, days=config.certificate_days)
        certificate = own_certificate(shell)
        if certificate is not None:
            engine.run.vouching = SiteWord(identity, config.site, certificate)
            shell.spawn(keep_word(shell), "word-on-task")
        address, broker_kind = await shell.start_broker(config, "coordinator")
        if config.founds:
            # After the broker: who joins is told its port.
            await self._serve_joins(site, address.port if shell.has_own_broker else 0)
        link = shell.link(
            EDGES,
            address,
            client_id=f"c-{me}",
            incoming=Direction.EDGE_TO_COORDINATOR,
            whose="coordinator",
            ids=lambda: (me,),
        )
        subscribed = link.subscribe(*topics.coordinator_filters(config.site))
        await link.start()
        await shell.be_observed("coordinator")
        self._emit_ready(address, broker_kind, self._show_page())
        shell.spawn(self._start(subscribed), "start")
        shell.spawn(self._advertise(address), "advertise")
        shell.spawn(self._linger(), "linger")
        shell.freeze()
        await shell.stop.wait()

    def _show_page(self) -> str:
        """Serve the live page beside the rounds; return its address, empty for none."""
        config, shell = self._config, self._shell
        place = config.page()
        if place is None:
            forget_place(shell.directory)
            return ""
        server = PageServer(shell.directory, place, tls=shell.tls, insecure=config.insecure)
        shell.at_close.append(functools.partial(asyncio.to_thread, server.stop))
        return start_page(server, asked=bool(config.web))

    async def _serve_joins(self, site: Site, broker_port: int) -> None:
        """Let devices and edges join the site, as long as this process lives."""
        config, shell = self._config, self._shell
        enrolment = Enrolment(shell.directory)
        service = JoinService(
            site,
            enrolment,
            certificate_days=config.certificate_days,
            broker_port=broker_port,
            counters=shell.driver.core.counters,
        )

        async def close() -> None:
            await service.listener.close()
            enrolment.close()

        shell.at_close.append(close)
        self._join_port = await service.start(config.listen, config.join_port)
        _log.info("devices and edges join site %s at %s", site.name, ", ".join(service.places))

    async def _start(self, subscribed: asyncio.Future[None]) -> None:
        """Start once we can hear and be heard: the first beacon makes edges say hello."""
        await subscribed
        self._shell.receive(Start())

    async def _linger(self) -> None:
        await self._over.wait()
        await asyncio.sleep(self._config.linger_s)
        self._shell.stop.set()

    async def _advertise(self, address: BrokerAddress) -> None:
        config, shell = self._config, self._shell
        if config.discovery == "off":
            return
        discovery = await shell.discover()
        advert = Advert(
            *("coordinator", shell.id, config.site, address, PROTOCOL_VERSION), join=self._join_port
        )
        await discovery.advertise(advert, listen=config.listen if shell.has_own_broker else None)
        discovery.browse("coordinator", self._see_others)

    def _see_others(self, adverts: frozenset[Advert]) -> None:
        there = (one for one in adverts if one.id != self._shell.id)
        others = tuple(sorted(f"{one.id} at {one.address}" for one in there))
        if others == self._others:
            return
        self._others = others
        self._store.others_are(others)
        site = self._config.site
        if others:
            _log.warning(
                "another coordinator runs at site %s: %s; an edge serves only one of them: "
                "stop one, or give it and its edges and agents another --site",
                site,
                ", ".join(others),
            )
        else:
            _log.info("this is again the only coordinator at site %s", site)

    # ------------------------------------------------------------------ events

    def _emit_ready(self, address: BrokerAddress, broker_kind: str, page: str) -> None:
        run, recipe = self._store.run, self._recipe
        fields = {
            "id": self._shell.id,
            "broker": str(address),
            "broker_kind": broker_kind,
            "web": page,
            "site": self._config.site,
            "run": run.run_id,
            "recipe": recipe.name,
            "policy": recipe.policy.name,
            "rounds": run.recipe.rounds.count,
            "resumed": run.resumed,
            "primary_metric": next((one.key for one in measures_of(recipe)), None),
        }
        self._shell.emit(Emit("ready", fields))

    def _show(self, event: Emit) -> None:
        name, fields = event.name, event.fields
        _log.log(level_of(name, fields), "%s", words_of(name, fields))
        if name != "end":
            return
        if not fields["updates_used"]:
            self._rounds_in_vain = int(str(fields["rounds_done"]))
        if fields["conclusion"]:
            _log.info("%s", fields["conclusion"])
        self._over.set()


def route(site: str, coordinator: str, send: Send) -> tuple[str, str]:
    """Return the link and the topic of a message to an edge, or of the beacon."""
    if send.to == EVERYBODY:
        return EDGES, topics.coordinator_beacon(site, coordinator)
    return EDGES, topics.edge_down(site, send.to, kind(send.message))


def level_of(name: str, fields: Mapping[str, object]) -> int:
    """Return how loud an event is: what costs the run its rounds is a warning."""
    loud = (
        name in {"edge_lost", "suspicious"}
        or (name == "round" and not fields["used"])
        or (name == "waiting" and fields["reason"] == DECLINED)
        or (name == "opinions" and not fields.get("answered", fields.get("volunteers")))
    )
    return logging.WARNING if loud else logging.INFO


def words_of(name: str, fields: Mapping[str, object]) -> str:
    """Return an event with its short fields for a person."""
    if name == "waiting" and "wanted" in fields:
        why = str(fields["reason"])
        return f"waiting for {why}: {fields[why]} of {fields['wanted']}"
    if name == "waiting" and fields["reason"] == STATISTICS:
        return f"waiting for the sample statistics of {fields['agents']} agents"
    if name == "suspicious":
        what = SUSPICIOUS[str(fields["what"])].format(**fields)
        return f"edge {fields['name'] or fields['edge']} reports {what}"
    if isinstance(missing := fields.get("missing"), dict):
        # Why opinions are missing: `3 unsigned, 1 gone`.
        reasons = ", ".join(f"{count:g} {reason}" for reason, count in missing.items())
        fields = {**fields, "missing": reasons}
    unless = ("iterations", "rent_micro") if name == "round" else ()  # 0 where nobody decides them
    return str(Emit(name, {key: at for key, at in fields.items() if at or key not in unless}))
