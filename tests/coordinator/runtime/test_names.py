"""What people call an agent comes from its own words to the table of devices."""

from pathlib import Path

from fedagent_coordinator.reader import open_reader

from .harness import Site, recipe, toy_edges


def test_the_name_of_an_agent_is_in_the_table_of_devices(tmp_path: Path) -> None:
    given = recipe("rounds.count=2")
    site = Site(tmp_path, given, toy_edges(given))
    site.edges[0].agents[0].name = "kitchen"
    site.edges[0].agents[1].name = "hall\x1b[31m"
    site.run()
    site.close()
    with open_reader(tmp_path) as reader:
        devices = {row.agent: row.label for row in reader.devices(reader.run().run_id)}
    assert devices == {"agent-0-0": "kitchen", "agent-0-1": "hall [31m", "agent-0-2": ""}


def test_a_name_is_written_once(tmp_path: Path) -> None:
    given = recipe("rounds.count=3")
    site = Site(tmp_path, given, toy_edges(given))
    site.edges[0].agents[0].name = "kitchen"
    site.run()
    assert site.passed.count("label.committed") == 2  # the edge's, and the agent's
    site.close()
