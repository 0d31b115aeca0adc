"""A small network on handwritten digits, three clients: as few lines as Flower takes."""

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from torch import nn

client = ClientApp()
server = ServerApp()


def make_model():
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(1024, 10),
    )


def load(context):
    digits = np.load(context.run_config["digits"])
    x, y = torch.tensor(digits["x"] / 16, dtype=torch.float32), torch.tensor(digits["y"])
    part, parts = context.node_config["partition-id"], context.node_config["num-partitions"]
    order = np.random.default_rng(0).permutation(len(y))[part::parts]
    held_out = len(order) // 5
    return (x[order[held_out:]], y[order[held_out:]]), (x[order[:held_out]], y[order[:held_out]])


@client.train()
def train(message: Message, context: Context):
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    (x, y), _ = load(context)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        for rows in torch.randperm(len(x)).split(32):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    metrics = MetricRecord({"train_loss": loss.item(), "num-examples": len(x)})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client.evaluate()
def evaluate(message: Message, context: Context):
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, (x, y) = load(context)
    with torch.no_grad():
        accuracy = (model(x).argmax(1) == y).float().mean().item()
    metrics = MetricRecord({"accuracy": accuracy, "num-examples": len(x)})
    return Message(content=RecordDict({"metrics": metrics}), reply_to=message)


@server.main()
def main(grid: Grid, context: Context):
    strategy = FedAvg(min_train_nodes=3, min_evaluate_nodes=3, min_available_nodes=3)
    arrays = ArrayRecord(make_model().state_dict())
    result = strategy.start(grid, arrays, num_rounds=context.run_config["rounds"])
    print(result.evaluate_metrics_clientapp)
