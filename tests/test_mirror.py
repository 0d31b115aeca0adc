"""A module of any weight has a test module of its name in its role's tests, or it is said where.

`demo/plan.py` is tested in `test_plan.py`, in `test_demo_plan.py`, or in `test_demo.py`: a small
package may have one for all.
"""

from pathlib import Path

ROOT = Path(__file__).parents[1]
MIRRORED = {
    "agent/fedagent_agent": "agent",
    "coordinator/fedagent_coordinator": "coordinator",
    "deploy/cli/fedagent_cli": "cli",
    "deploy/python/fedagent": "python",
    "deploy/testbed/fedagent_testbed": "testbed",
    "edge_aggregator/fedagent_edge": "edge_aggregator",
    "protocol/fedagent_node": "node",
    "protocol/fedagent_protocol": "protocol",
    "protocol/fedagent_task": "task",
}
WEIGHT = 100
"""Lines above which a module needs a test module."""
RECORDS = {"base", "effects", "errors", "fields", "rows", "settings"}
"""Names of modules that declare what others act on; `messages` are tested as bytes, all alike."""
ELSEWHERE = {
    # One state machine, tested by what it is for.
    "agent/test_context": ("agent/core/device", "agent/machine"),
    "agent/test_interleavings": ("agent/core/agent",),
    "agent/test_once": ("agent/core/download",),
    "agent/test_transfers": ("agent/core/fetch", "agent/core/uploads", "agent/models_cache"),
    "agent/trainer/test_client": ("agent/trainer/open_task", "agent/trainer/process"),
    "coordinator/core/test_engine": ("coordinator/core/edge_messages",),
    "coordinator/core/test_evaluation": ("coordinator/core/answers", "coordinator/core/evaluating"),
    "coordinator/core/test_iterations": ("coordinator/core/primal_dual",),
    "coordinator/web/test_api": (
        "coordinator/web/access",
        "coordinator/web/books",
        "coordinator/web/endpoints",
        "coordinator/web/feed",
        "coordinator/web/records",
        "coordinator/web/server",
        "coordinator/web/watcher",
    ),
    "coordinator/core/test_outcomes": ("coordinator/core/ordered",),
    "coordinator/core/test_round_placement": (
        "coordinator/core/decision",
        "coordinator/core/edges",
    ),
    "coordinator/database/test_connection": ("coordinator/database/schema",),
    "coordinator/database/test_learning": ("coordinator/database/rounds", "coordinator/records"),
    "coordinator/database/test_pruning": ("cli/prune",),
    "coordinator/explanation/test_explain": ("coordinator/explanation/account",),
    "coordinator/explanation/test_nearest": ("coordinator/explanation/decided",),
    "coordinator/placement/test_rules": ("coordinator/placement/budgeted_ucb",),
    "coordinator/policies/test_quick_init": ("coordinator/policies/cold_start",),
    "coordinator/policies/test_subset_enumeration": ("coordinator/policies/slots",),
    "coordinator/solvers/test_density": ("coordinator/solvers/local_search",),
    "coordinator/test_global_model": ("coordinator/core/merge",),
    "coordinator/test_graph_runs": ("coordinator/run_settings", "task/graph_scoring"),
    "coordinator/test_join_service": ("coordinator/enrolment", "node/join_client"),
    "coordinator/test_onnx_export": ("task/exported", "task/onnx_session"),
    "coordinator/test_registry": ("protocol/registry",),
    "coordinator/test_strategy_runs": ("coordinator/merged_models",),
    "coordinator/test_store": ("coordinator/database/models", "coordinator/reader"),
    "edge_aggregator/test_evaluation": ("edge/core/answers",),
    "edge_aggregator/test_restart": ("edge/spool", "edge/store"),
    "edge_aggregator/test_round": ("edge/core/edge", "edge/core/live", "edge/core/rounds"),
    "node/test_certificates": ("node/authority",),
    "task/program/test_codec": (
        "task/program/operators",
        "task/program/spec",
        "task/program/torch_operators",
    ),
    "task/program/test_export": ("task/program/comparing",),
    "task/program/test_onnx_graph": ("task/program/onnx_context", "task/program/onnx_forms"),
    "task/program/test_families": (
        "task/program/draft",
        "task/program/export",
        "task/program/plan",
        "task/program/roles",
        "task/program/torch_program",
    ),
    # What a person sees of it.
    "cli/test_doctor": ("cli/checks",),
    "cli/test_enrolment": ("cli/site_checks",),
    "cli/test_output": ("cli/main",),
    "cli/test_report": ("cli/drawing",),
    "cli/test_service": ("cli/systemd",),
    "cli/test_status": ("cli/devices",),
    # A whole fleet in virtual time.
    "testbed/test_survival": ("testbed/kernel", "testbed/node", "testbed/roles", "testbed/world"),
    "testbed/learning/test_datasets": ("testbed/learning/fleet",),
    "testbed/study/test_play": ("testbed/study/selection",),
    "testbed/worlds/test_population": ("testbed/recipe", "testbed/sections"),
    "e2e/test_device_log": ("cli/device_log",),
    "e2e/test_field": ("testbed/local",),
    # Seen from outside: by a broker, on a network, by every plugin, in a recipe.
    "checks/test_parameters": ("protocol/registry",),
    "node/test_broker": (
        "node/broker_wrapper",
        "node/embedded",
        "node/embedded_limits",
        "node/embedded_sessions",
        "node/mosquitto",
    ),
    "node/test_discovery": ("node/watch",),
    "node/test_link": ("node/paho_client",),
    "node/test_reach": ("node/advert", "node/network"),
    "agent/test_links": ("node/shell",),
    "task/test_recipe": ("task/explain", "task/recipe_checks", "task/spec"),
    "task/test_scaling": ("task/features", "task/moments"),
    "task/secure_aggregation/test_protocol": (
        "task/secure_aggregation/cohort",
        "task/secure_aggregation/keys",
        "task/secure_aggregation/member",
    ),
}
"""Test modules that test modules of another name."""


def unmirrored() -> dict[str, int]:
    """Return the modules without a test module, and how long each is."""
    found = {}
    for package, tests in MIRRORED.items():
        known = {path.stem for path in (ROOT / "tests" / tests).rglob("test_*.py")}
        for path in sorted((ROOT / package).rglob("*.py")):
            inside = path.relative_to(ROOT / package).with_suffix("")
            name, folder = inside.name, inside.parent.name
            lines = path.read_text(encoding="utf-8").count("\n")
            names = {f"test_{name}", f"test_{folder}_{name}", f"test_{folder}"}
            if lines > WEIGHT and known.isdisjoint(names) and name not in RECORDS:
                found[f"{package.rpartition('fedagent_')[2]}/{inside}"] = lines
    return {one: lines for one, lines in found.items() if "/messages/" not in one}


def test_every_module_of_weight_has_its_test_module() -> None:
    elsewhere = {module for modules in ELSEWHERE.values() for module in modules}
    assert not {one: lines for one, lines in unmirrored().items() if one not in elsewhere}
    assert not [test for test in ELSEWHERE if not (ROOT / "tests" / f"{test}.py").is_file()]
