"""What the demo knows from the events of its processes.

Pure: events and our own clock in, fields to show out.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from fedagent_task.measures import ACCURACY, BY_KEY, Measure

Event = Mapping[str, object]
DOOMED = ", will be killed"
"""The part of the victim's note that ends with it."""
EdgeNamer = Callable[[str], str]


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
    declined: int = 0
    last_round: int = 0
    training_at: str = ""


@dataclass(slots=True)
class EdgeState:
    """One edge as the demo sees it."""

    name: str
    id: str = ""
    state: str = "starting"
    broker: str = ""
    agents: set[str] = field(default_factory=set)
    ordered: int = 0
    in_time: int = 0
    spent_micro: int = 0


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
    spent_micro: int = 0
    first_round_at: float | None = None
    primary_metric: Measure = ACCURACY
    figures: list[float] = field(default_factory=list)
    opinion: list[float] = field(default_factory=list)
    volunteers: list[int] = field(default_factory=list)
    in_time: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    end: dict[str, object] | None = None
    notes: list[str] = field(default_factory=list)

    def apply(self, name: str, event: Event, now: float) -> None:
        """Take in one event of the process `name`, seen at `now` [s]."""
        kind = str(event.get("event", ""))
        if agent := self.agents.get(name):
            was_killed = agent.state == "killed"
            _apply_agent(agent, kind, event, self.edge_name)
            if was_killed:
                # What it had told before may still come out of its pipe.
                agent.state = "killed"
                agent.edges.clear()
            if kind == "ordered":
                self._at_work(str(event.get("edge")))
        elif edge := self.edges.get(name):
            _apply_edge(edge, kind, event)
        else:
            self._apply_coordinator(kind, event, now)

    def note(self, text: str) -> None:
        """Remember one line for people; the last five are kept."""
        self.notes = [*self.notes[-4:], text]

    def edge_name(self, edge_id: str) -> str:
        """Return the name of an edge by its id, or the id."""
        return next((edge.name for edge in self.edges.values() if edge.id == edge_id), edge_id)

    def agent_name(self, agent_id: str) -> str:
        """Return the name of an agent by its id, or the id."""
        return next((a.name for a in self.agents.values() if a.id == agent_id), agent_id)

    def killed(self, name: str) -> None:
        """Mark an agent as killed by us."""
        agent = self.agents[name]
        agent.state = "killed"
        agent.note = agent.note.replace(DOOMED, "")
        agent.edges.clear()

    def _at_work(self, edge_id: str) -> None:
        """Mark the edge that has ordered somebody."""
        for edge in self.edges.values():
            if edge.id == edge_id:
                edge.state = "collecting"

    def _apply_coordinator(self, kind: str, event: Event, now: float) -> None:
        match kind:
            case "ready":
                self.policy = str(event.get("policy", ""))
                self.run = str(event.get("run", ""))
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
        """Take in how good a model is, by what the run's are evaluated by."""
        numbers = {name: value for name, value in event.items() if isinstance(value, int | float)}
        if (value := self.primary_metric.of(numbers)) is not None:
            self.figures.append(value)

    def _evaluate(self, event: Event) -> None:
        """Take in what clients think of a model, or how many of them volunteer."""
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
        self.seconds.append(float(str(event.get("seconds", 0.0))))
        per_edge = event.get("edges")
        if not isinstance(per_edge, dict):
            return
        for edge in self.edges.values():
            part = per_edge.get(edge.id)
            if isinstance(part, dict):
                edge.ordered += _integer(part, "ordered")
                edge.in_time += _integer(part, "in_time")
                edge.spent_micro += _integer(part, "spent_micro")


def _apply_agent(agent: AgentState, kind: str, event: Event, edge_name: EdgeNamer) -> None:
    agent.last_round = _integer(event, "round", agent.last_round)
    match kind:
        case "ready":
            agent.id = str(event.get("id", ""))
            agent.state = "searching"
        case "edge_joined":
            agent.edges.add(str(event.get("edge")))
            if agent.state in ("searching", "starting"):
                agent.state = "waiting"
        case "edge_lost":
            agent.edges.discard(str(event.get("edge")))
            if not agent.edges:
                agent.state = "searching"
        case "ordered":
            agent.ordered += 1
            agent.state = "training"
            agent.training_at = edge_name(str(event.get("edge")))
        case "update":
            agent.state = "sending"
        case "receipt":
            agent.in_time += event.get("status") == "accepted"
            agent.late += event.get("status") == "late"
            agent.state = "waiting"
        case "declined":
            agent.declined += 1
            agent.state = "waiting"
        case "abandoned":
            agent.state = "waiting"
        case _:
            pass


def _apply_edge(edge: EdgeState, kind: str, event: Event) -> None:
    match kind:
        case "ready":
            edge.id = str(event.get("id", ""))
            edge.broker = str(event.get("broker_kind", ""))
            edge.state = "searching"
        case "coordinator_joined":
            edge.state = "waiting"
        case "coordinator_lost":
            edge.state = "searching"
        case "agent_joined":
            edge.agents.add(str(event.get("agent")))
        case "agent_lost":
            edge.agents.discard(str(event.get("agent")))
        case "round_closed":
            edge.state = "failed" if event.get("failed") else "waiting"
        case _:
            pass


def _integer(event: Event, key: str, default: int = 0) -> int:
    value = event.get(key, default)
    return value if isinstance(value, int) else default
