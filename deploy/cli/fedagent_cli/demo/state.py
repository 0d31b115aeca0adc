"""What the demo knows from the events of its processes: events and our own clock in, fields out."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fedagent_task.scoring.measures import ACCURACY, BY_KEY, Measure

Event = Mapping[str, object]
DOOMED = ", will be killed"
"""The part of the victim's note that ends with it."""
AGENT_STATES = {
    "ready": "searching",
    "ordered": "training",
    "update": "sending",
    "receipt": "waiting",
    "declined": "waiting",
    "abandoned": "waiting",
}
EDGE_STATES = {
    "ready": "searching",
    "coordinator_joined": "waiting",
    "coordinator_lost": "searching",
    "round_closed": "waiting",
}
"""What one does after an event."""


@dataclass(slots=True)
class AgentState:
    """One agent as the demo sees it."""

    name: str
    note: str = ""
    id: str = ""
    state: str = "starting"
    edges: set[str] = field(default_factory=set)
    ordered: int = 0
    in_time: int = 0
    late: int = 0
    training_at: str = ""

    def apply(self, kind: str, event: Event) -> None:
        """Take in one of its events."""
        self.state = AGENT_STATES.get(kind, self.state)
        edge = str(event.get("edge"))
        match kind:
            case "ready":
                self.id = str(event.get("id", ""))
            case "edge_joined":
                self.edges.add(edge)
                if self.state in ("searching", "starting"):
                    self.state = "waiting"
            case "edge_lost":
                self.edges.discard(edge)
                if not self.edges:
                    self.state = "searching"
            case "ordered":
                self.ordered += 1
            case "receipt":
                self.in_time += event.get("status") == "accepted"
                self.late += event.get("status") == "late"
            case _:
                pass


@dataclass(slots=True)
class EdgeState:
    """One edge as the demo sees it."""

    name: str
    id: str = ""
    state: str = "starting"
    agents: set[str] = field(default_factory=set)
    ordered: int = 0
    in_time: int = 0
    spent_micro: int = 0

    def apply(self, kind: str, event: Event) -> None:
        """Take in one of its events."""
        self.state = EDGE_STATES.get(kind, self.state)
        match kind:
            case "ready":
                self.id = str(event.get("id", ""))
            case "agent_joined":
                self.agents.add(str(event.get("agent")))
            case "agent_lost":
                self.agents.discard(str(event.get("agent")))
            case "round_closed" if event.get("failed"):
                self.state = "failed"
            case _:
                pass


@dataclass(slots=True)
class DemoState:
    """The whole federation as the demo sees it."""

    rounds: int
    agents: dict[str, AgentState]
    edges: dict[str, EdgeState]
    round: int = 0
    policy: str = ""
    broker: str = ""
    run: str = ""
    page: str = ""  # address of the live page, empty for none
    spent_micro: int = 0
    first_round_at: float | None = None
    primary_metric: Measure = ACCURACY
    figures: list[float] = field(default_factory=list)
    opinion: list[float] = field(default_factory=list)
    volunteers: list[int] = field(default_factory=list)
    in_time: list[int] = field(default_factory=list)
    end: dict[str, object] | None = None
    notes: list[str] = field(default_factory=list)

    def apply(self, name: str, event: Event, now: float) -> None:
        """Take in one event of the process `name`, seen at `now` [s]."""
        kind = str(event.get("event", ""))
        if agent := self.agents.get(name):
            was_killed = agent.state == "killed"
            agent.apply(kind, event)
            if was_killed:  # what it had sent before may still come out of its pipe
                self.killed(name)
            if kind == "ordered":
                self._at_work(agent, str(event.get("edge")))
        elif edge := self.edges.get(name):
            edge.apply(kind, event)
        else:
            self._apply_coordinator(kind, event, now)

    def note(self, text: str) -> None:
        """Remember one line for people; the last five are kept."""
        self.notes = [*self.notes[-4:], text]

    def edge_name(self, edge_id: str) -> str:
        """Return the name of an edge by its id, or the id."""
        return _name_of(self.edges.values(), edge_id)

    def agent_name(self, agent_id: str) -> str:
        """Return the name of an agent by its id, or the id."""
        return _name_of(self.agents.values(), agent_id)

    def killed(self, name: str) -> None:
        """Mark an agent as killed by us."""
        agent = self.agents[name]
        agent.state = "killed"
        agent.note = agent.note.replace(DOOMED, "")
        agent.edges.clear()

    def _at_work(self, agent: AgentState, edge_id: str) -> None:
        agent.training_at = self.edge_name(edge_id)
        for edge in self.edges.values():
            if edge.id == edge_id:
                edge.state = "collecting"

    def _apply_coordinator(self, kind: str, event: Event, now: float) -> None:
        match kind:
            case "ready":
                self.policy = str(event.get("policy", ""))
                self.run = str(event.get("run", ""))
                self.page = str(event.get("web", ""))
                self.rounds = _integer(event, "rounds", self.rounds)
                self.primary_metric = BY_KEY.get(str(event.get("primary_metric")), ACCURACY)
                own = str(event.get("broker_kind", ""))
                self.broker = own if own in ("mosquitto", "embedded") else str(event.get("broker"))
            case "round":
                self._close_round(event, now)
                self._measure(event)
            case "model":
                self._measure(event)
            case "opinions":
                self._evaluate(event)
            case "end":
                self.end = dict(event)
            case _:
                pass

    def _measure(self, event: Event) -> None:
        numbers = {name: value for name, value in event.items() if isinstance(value, int | float)}
        if (value := self.primary_metric.of(numbers)) is not None:
            self.figures.append(value)

    def _evaluate(self, event: Event) -> None:
        mean, volunteers = event.get("mean"), event.get("volunteers")
        if isinstance(mean, int | float):
            self.opinion.append(float(mean))
        if volunteers is not None:
            count = len(volunteers) if isinstance(volunteers, list) else volunteers
            self.volunteers.append(count if isinstance(count, int) else 0)

    def _close_round(self, event: Event, now: float) -> None:
        self.round = _integer(event, "round")
        if self.first_round_at is None:
            self.first_round_at = now
        self.spent_micro = _integer(event, "total_spent_micro")
        self.in_time.append(_integer(event, "in_time"))
        per_edge = event.get("edges")
        if not isinstance(per_edge, dict):
            return
        for edge in self.edges.values():
            part = per_edge.get(edge.id)
            if isinstance(part, dict):
                edge.ordered += _integer(part, "ordered")
                edge.in_time += _integer(part, "in_time")
                edge.spent_micro += _integer(part, "spent_micro")


def _name_of(known: Iterable[AgentState | EdgeState], identity: str) -> str:
    return next((one.name for one in known if one.id == identity), identity)


def _integer(event: Event, key: str, default: int = 0) -> int:
    value = event.get(key, default)
    return value if isinstance(value, int) else default
