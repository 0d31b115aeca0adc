"""LinUCB of two other libraries, in their own environment: one line of JSON each.

Run by `bandits.py` with that environment's Python; imports nothing of ours. The workload:
each round all arms are evaluated by one context, the best is played, and its reward learnt.
"""

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
ALPHA = 1.0


def draw(rounds: int, size: int) -> "tuple[np.ndarray, np.ndarray]":
    rng = np.random.default_rng(0)
    return rng.random((rounds, size)), rng.random(rounds)


def mabwiser(arms: int, rounds: int, size: int) -> float:
    from mabwiser.mab import MAB, LearningPolicy

    contexts, rewards = draw(rounds, size)
    made = MAB(list(range(arms)), LearningPolicy.LinUCB(alpha=ALPHA), seed=1)
    made.fit(np.array([0]), np.array([0.5]), contexts[:1])
    began = time.perf_counter()
    for t in range(rounds):
        arm = made.predict(contexts[t : t + 1])
        made.partial_fit(np.array([arm]), rewards[t : t + 1], contexts[t : t + 1])
    return time.perf_counter() - began


def contextualbandits(arms: int, rounds: int, size: int) -> float:
    from contextualbandits.online import LinUCB

    contexts, rewards = draw(rounds, size)
    made = LinUCB(nchoices=arms, alpha=ALPHA, njobs=1, random_state=1, beta_prior=None)
    made.fit(contexts[:1], np.array([0]), rewards[:1])
    began = time.perf_counter()
    for t in range(rounds):
        arm = made.predict(contexts[t : t + 1])
        made.partial_fit(contexts[t : t + 1], arm, rewards[t : t + 1])
    return time.perf_counter() - began


def main() -> None:
    arms, rounds, size = (int(value) for value in sys.argv[1:4])
    for measure in (mabwiser, contextualbandits):
        print(json.dumps({measure.__name__: measure(arms, rounds, size) / rounds}), flush=True)


if __name__ == "__main__":
    main()
