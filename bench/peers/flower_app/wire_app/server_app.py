# flwr is installed in the peer's own environment only, so its types are unknown here.
# mypy: disable-error-code="import-not-found, untyped-decorator"
"""A server that runs Flower's own FedAvg and stamps the end of each round."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    agents = int(config["agents"])
    features, classes = int(config["features"]), int(config["classes"])
    stamps = Path(str(config["stamps"]))
    replies = [0]

    def count(contents: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        del weighted_by_key
        replies.append(len(contents))
        return MetricRecord({"replies": len(contents)})

    def stamp(server_round: int, arrays: ArrayRecord) -> None:
        at = time.monotonic()
        weight = float(arrays.to_numpy_ndarrays()[0].flat[0])
        line = {"round": server_round, "at": at, "replies": replies[-1], "weight": weight}
        with stamps.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")

    strategy = FedAvg(
        fraction_evaluate=0.0,
        min_train_nodes=agents,
        min_available_nodes=agents,
        train_metrics_aggr_fn=count,
    )
    model = [np.zeros((features, classes), np.float32), np.zeros(classes, np.float32)]
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(model),
        num_rounds=int(config["rounds"]),
        evaluate_fn=stamp,
    )
