"""Task files as a stranger may make them: well formed ones with something changed."""

import base64
import json
import pickle
import zlib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from fedagent_task.errors import RecipeError, TaskFormatError
from fedagent_task.program.operators import operators
from fedagent_task.program.torch_program import TorchProgram
from fedagent_task.task_file import decode_task

LIMIT = 64_000_000
"""Memory that a trial may take."""
_INTS = (0, 1, 2, 3, 7, -1, -2, 64, 4096, 2**20, 2**31, 2**31 - 1, 2**40, 2**62, -(2**40))
_WORDS = (
    "float32",
    "int64",
    "bool",
    "float64",
    "none",
    "tanh",
    "train",
    "frozen",
    "local",
    "a,b->",
)
_NAMES = ("os.system", "builtins.eval", "__import__", "_C.load", "torch.load", "", "x" * 500)


class Bomb:
    """Leaves a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._path,))


def bomb(path: Path) -> bytes:
    """Return what leaves a file where it is unpickled."""
    return pickle.dumps(Bomb(path))


class Mutator:
    """Changes one to three places of a task file; the same ones for the same seed."""

    def __init__(self, seed: int, body: bytes, charge: bytes) -> None:
        self.rng = np.random.default_rng(seed)
        self._body, self._charge = body, charge

    def mutated(self) -> bytes:
        match int(self.rng.integers(10)):
            case 0:
                return self._raw(self._body)
            case 1:
                return self._told(self._text)
            case 2:
                return self._told(lambda told: self._program(told, self._raw))
            case 3:
                return self._told(lambda told: self._program(told, self._raw, packed=False))
            case _:
                return self._told(lambda told: self._program(told, self._structure, packed=False))

    def _told(self, change: Any) -> bytes:
        length = int.from_bytes(self._body[:8], "little")
        header = json.loads(self._body[8 : 8 + length])
        told = json.loads(header["__metadata__"]["fedagent.task"])
        change(told)
        header["__metadata__"]["fedagent.task"] = json.dumps(told)
        text = json.dumps(header).encode()
        return len(text).to_bytes(8, "little") + text + self._body[8 + length :]

    def _text(self, told: dict[str, Any]) -> None:
        key = self._one(list(told))
        charge = base64.b64encode(self._charge).decode()
        others: list[Any] = [charge, None, [], {"a": [charge]}, "", -1, 2**70, 1e400, [[[]]], True]
        told[key] = self._one(others)

    def _program(self, told: dict[str, Any], change: Any, *, packed: bool = True) -> None:
        body = base64.b64decode(told["program"])
        if packed:
            body = change(body)
        elif change == self._structure:
            content = msgspec.msgpack.decode(zlib.decompress(body))
            for _ in range(int(self.rng.integers(1, 4))):
                content = change(content)
            body = zlib.compress(msgspec.msgpack.encode(content))
        else:
            body = zlib.compress(change(zlib.decompress(body)))
        told["program"] = base64.b64encode(body).decode()

    def _raw(self, body: bytes) -> bytes:
        at = int(self.rng.integers(len(body)))
        match int(self.rng.integers(6)):
            case 0:
                return body[:at]
            case 1:
                return body[:at] + self._charge + body[at:]
            case 2:
                return self._charge
            case 3:
                return body[:at] + self.rng.bytes(8) + body[at + 8 :]
            case 4:
                return body + body[at:]
            case _:
                changed = bytearray(body)
                for place in self.rng.integers(len(body), size=4):
                    changed[place] ^= int(self.rng.integers(1, 256))
                return bytes(changed)

    def _structure(self, content: Any) -> Any:
        """Change one place of a tree, most often deep in it."""
        if isinstance(content, list) and content and self.rng.random() < 0.95:
            at = int(self.rng.integers(len(content)))
            changed = list(content)
            match float(self.rng.random()):
                case chance if chance < 0.03:
                    del changed[at]
                case chance if chance < 0.06:
                    changed.insert(at, changed[at])
                case chance if chance < 0.08:
                    changed = changed * int(self._one([2, 40, 3000]))
                case chance if chance < 0.10:
                    other = int(self.rng.integers(len(content)))
                    changed[at], changed[other] = changed[other], changed[at]
                case _:
                    changed[at] = self._structure(changed[at])
            return changed
        if isinstance(content, dict) and "v" in content:
            near = max(0, content["v"] + int(self.rng.integers(-4, 5)))
            return self._one([{"v": near}, {"v": near}, {"v": 2**33}, {"v": -1}, 3, None])
        if isinstance(content, bool):
            return self._one([not content, None, 2])
        if isinstance(content, int):
            near = content + int(self.rng.integers(-2, 3))
            return self._one([near, near, abs(near), int(self._one(_INTS)), True, 0.5])
        if isinstance(content, float):
            return self._one([0.0, -1.0, 1e308, float("inf"), float("nan"), content * 2])
        if isinstance(content, str) and content in operators():
            return self._operator(content)
        if isinstance(content, str):
            return self._one([*_WORDS, *_NAMES, self._charge])
        if isinstance(content, bytes):
            return self._one([self._charge, b"", content * 2, content[:-1]])
        return self._one([None, [], {"v": 0}, self._charge, [[[[]]]], 1])

    def _operator(self, name: str) -> str:
        """Return another one, most often of the same arguments."""
        known = operators()
        kinds = known[name].kinds if name in known else ()
        like = [other for other, one in known.items() if one.kinds == kinds] or [name]
        return str(self._one([self._one(like), self._one(list(known)), self._one(_NAMES)]))

    def _one(self, items: Any) -> Any:
        return items[int(self.rng.integers(len(items)))]


def tried(body: bytes) -> str:
    """Do with a task file all that a device does; return how far it came, or what refused it.

    Everything else than our two errors goes up.
    """
    try:
        task = decode_task(body)
    except RecipeError:
        return "file"
    try:
        program = TorchProgram(task.program, limit=LIMIT)
        program.load(task.first)
        program.load(task.once)
        rows = np.random.default_rng(0).integers(0, 3, (2, task.model.features))
        batch = program.inputs_of(rows.astype(np.float32), np.zeros(2, np.float32))
        for _ in range(2):
            program.backward(program.loss(batch))
            with torch.no_grad():
                for leaf in program.parameters.values():
                    if leaf.grad is not None:
                        leaf.sub_(0.01 * leaf.grad)
                        leaf.grad = None
        program.evaluate(batch)
        program.tensors()
        program.local()
    except TaskFormatError:
        return "program"
    return "trained"
