"""Whether each model of a run is one step of its strategy from the one before."""

from itertools import pairwise
from pathlib import Path

from fedagent_coordinator.books.models import recipe_in
from fedagent_coordinator.books.write import Books
from fedagent_coordinator.core.effects import Merge, MergePart
from fedagent_coordinator.core.settings import Window, most_weight
from fedagent_coordinator.held_out import held_out
from fedagent_coordinator.merged_models import merge_files
from fedagent_coordinator.run_settings import aggregation_of, model_manifest, robust_of
from fedagent_node.blobs import BlobStore
from fedagent_task.aggregation import EdgeShare, MergeFacts
from fedagent_task.recipe.spec import Recipe

Chain = list[tuple[int, str, str]]


def chain(folder: Path) -> Chain:
    """Return round, model and state of every commit, oldest first."""
    with Books(folder) as store:
        rows = store.connection.execute("SELECT round, digest, state FROM models ORDER BY round")
        return [tuple(row) for row in rows]


def check_chain(folder: Path, given: Recipe) -> Chain:
    """Assert that each model and state is one step from the one before, and from no other."""
    strategy, blobs = aggregation_of(given), BlobStore(folder / "models")
    models = chain(folder)
    with Books(folder) as store:
        ran = store.read.run()
        run, given = ran.run_id, recipe_in(ran.recipe) or given
        rows, clients = store.read.edge_results(run), store.indices(run).sizes()[0]
        forgotten = {edge: row.forgotten for edge, row in store.read.edge_totals(run).items()}
    for (since, base, state), (round_, digest, kept) in pairwise(models):
        last: dict[str, Window] = {}
        for row in rows:
            given_up = row.round <= forgotten.get(row.edge_id, 0) < round_
            counts = since < row.round <= round_ and not given_up
            if counts and row.model and not row.failed:
                most = most_weight(strategy, given)
                last[row.edge_id] = last.get(row.edge_id, Window("")).after(
                    row.model, row.weight, 0.0, row.norm, ordered=row.ordered, most=most
                )
        shares = [EdgeShare(weight=one.weight) for one in last.values()]
        combined = strategy.combine(shares)
        parts = sorted(
            MergePart(one.model, weight, weight, edge)
            for (edge, one), weight in zip(last.items(), combined.weights, strict=True)
        )
        usual = max((one.norm for one in last.values()), default=0.0)
        facts = MergeFacts(
            weight=sum(share.weight for share in shares), clients=clients, factor=combined.factor
        )
        merge = Merge(round_, tuple(parts), 0, usual, base, state, facts)
        rule, scored = robust_of(given), held_out(given)
        judge = None if scored is None or not scored.judging else scored.judge
        found = merge_files(blobs, model_manifest(given), merge, strategy, rule, judge)
        assert (found.digest, found.state) == (digest, kept)
    return models
