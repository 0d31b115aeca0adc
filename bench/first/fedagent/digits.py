"""A small network on handwritten digits, three devices."""

import numpy as np
import torch
from torch import nn

import fedagent

image = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
model = nn.Sequential(image, nn.Flatten(), nn.Linear(1024, 10))
digits = np.load("digits.npz")
x, y = (digits["x"] / 16).astype("float32"), digits["y"].astype("int64")
example = torch.tensor(x[:32]), torch.tensor(y[:32])
learner = {"rate": 0.1, "batch": 32, "passes": 5}
task = fedagent.Task(model, nn.functional.cross_entropy, example, learner=learner)
run = fedagent.run_local(task, agents=3, rounds=1, data=(x, y), test=0.2)
print(run.metrics["accuracy"])
