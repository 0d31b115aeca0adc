"""The field runs: separate processes find each other and train, with no address typed."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from .support import (
    BROKERS,
    DEMO,
    PATIENT,
    check_books,
    labels,
    new_field,
    shared_broker,
    start_small,
)


@pytest.mark.parametrize("broker", BROKERS)
def test_roles_find_each_other_by_zeroconf_and_train(tmp_path: Path, broker: str) -> None:
    with new_field(tmp_path) as field:
        coordinator = start_small(field, rounds=6, edges=2, agents=4, broker=broker)
        end = coordinator.wait("end")
        assert end["rounds_done"] == 6
        assert end["ledger_balanced"] is True
        assert float(str(end["accuracy"])) > 0.3
        assert coordinator.wait_exit() == 0
        assert sum(int(str(e["in_time"])) for e in coordinator.all("round")) >= 6
    check_books(coordinator)


@pytest.mark.nightly
def test_two_sites_on_one_broker_do_not_mix(tmp_path: Path) -> None:
    with shared_broker(tmp_path / "broker") as url, ExitStack() as stack:
        sites = []
        for folder, count in (("a", 2), ("b", 1)):
            field = new_field(tmp_path / folder, discovery="off", broker=url)
            stack.enter_context(field)
            sets = ("rounds.count=1", *PATIENT)
            field.coordinator(DEMO, wait_edges=count, wait_agents=count, sets=sets)
            for i in range(count):
                field.edge(f"edge-{i}")
                field.agent(f"agent-{i}", labels(i))
            sites.append((field, count))
        for field, count in sites:
            coordinator = field.processes["coordinator"]
            assert coordinator.wait("end")["rounds_done"] == 1
            edges, agents = (
                [field.processes[f"{role}-{i}"] for i in range(count)] for role in ("edge", "agent")
            )
            of_site = {edge.wait("ready")["id"] for edge in edges}
            own = {agent.wait("ready")["id"] for agent in agents}
            # A run needs each agent at one edge only; it may end before the other is heard.
            for agent in agents:
                for ident in of_site:
                    agent.wait("edge_joined", edge=ident)
                assert {event["edge"] for event in agent.all("edge_joined")} == of_site
            for edge in edges:
                for ident in own:
                    edge.wait("agent_joined", agent=ident)
                assert {event["agent"] for event in edge.all("agent_joined")} == own
            assert {event["edge"] for event in coordinator.all("edge_joined")} == of_site
            assert coordinator.wait_exit() == 0
            check_books(coordinator)
