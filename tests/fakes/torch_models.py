"""Modules as people bring them: one of each family, small, with a loss and an example batch."""

import torch
from torch import nn
from torch.nn import functional

from fedagent_task.program.source import TaskSource

CLASSES = 5


class Mlp(nn.Module):
    """Batch norm, dropout and two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(12, 16),
            nn.BatchNorm1d(16),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(16, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inside: int, out: int, stride: int, *, group: bool) -> None:
        super().__init__()
        self.one = nn.Conv2d(inside, out, 3, stride, 1, bias=False)
        self.two = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = _norm(out, group=group), _norm(out, group=group)
        self.short: nn.Module = nn.Identity()
        if stride > 1 or inside != out:
            self.short = nn.Sequential(
                nn.Conv2d(inside, out, 1, stride, bias=False), _norm(out, group=group)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = functional.relu(self.norm1(self.one(x)), inplace=True)
        return functional.relu(self.norm2(self.two(inner)) + self.short(x), inplace=True)


def _norm(width: int, *, group: bool) -> nn.Module:
    return nn.GroupNorm(min(8, width), width) if group else nn.BatchNorm2d(width)


class ResNet18(nn.Module):
    """He et al. 2016; `width` 64 is the paper's."""

    def __init__(self, *, group: bool, width: int = 8, channels: int = 3) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 7, 2, 3, bias=False),
            _norm(width, group=group),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        stages: list[nn.Module] = []
        before = width
        for stage in range(4):
            out = width * 2**stage
            stages += [
                Block(before, out, 1 if stage == 0 else 2, group=group),
                Block(out, out, 1, group=group),
            ]
            before = out
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(before, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.flatten(self.pool(self.stages(self.stem(x))), 1))


class Recurrent(nn.Module):
    """Two layers of an LSTM or a GRU on sequences, with dropout between them."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        make = nn.LSTM if kind == "lstm" else nn.GRU
        self.rnn = make(4, 8, num_layers=2, batch_first=True, dropout=0.2)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, _ = self.rnn(x)
        return self.head(seen[:, -1])


class Transformer(nn.Module):
    """An encoder over words, its head tied to the embedding, positions as a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(16, CLASSES)
        self.head.weight = self.embed.weight
        self.register_buffer("positions", torch.linspace(-1, 1, 6)[:, None])

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(words) + self.positions).mean(dim=1))


class Squeeze(nn.Module):
    """Squeeze and excitation."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(width, 8, 1), nn.Conv2d(8, width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = functional.adaptive_avg_pool2d(x, 1)
        return functional.hardsigmoid(self.up(functional.relu(self.down(scale)))) * x


class Inverted(nn.Module):
    """An inverted residual."""

    def __init__(
        self, inside: int, wide: int, out: int, kernel: int, stride: int, *, se: bool, hard: bool
    ) -> None:
        super().__init__()
        act: type[nn.Module] = nn.Hardswish if hard else nn.ReLU
        layers: list[nn.Module] = []
        if wide != inside:
            layers += [nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), act()]
        depthwise = nn.Conv2d(wide, wide, kernel, stride, kernel // 2, groups=wide, bias=False)
        layers += [depthwise, nn.BatchNorm2d(wide), act()]
        layers += [Squeeze(wide)] if se else []
        layers += [nn.Conv2d(wide, out, 1, bias=False), nn.BatchNorm2d(out)]
        self.body = nn.Sequential(*layers)
        self.add = stride == 1 and inside == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.add else self.body(x)


class MobileNet(nn.Module):
    """Four blocks of MobileNetV3-small (Howard et al. 2019); `part` divides their widths."""

    def __init__(self, part: int = 4) -> None:
        super().__init__()
        rows = [
            (3, 16, 16, True, False, 2),
            (3, 88, 24, False, False, 1),
            (5, 96, 40, True, True, 2),
            (5, 240, 40, True, True, 1),
        ]
        width = 16 // part
        layers: list[nn.Module] = [
            nn.Conv2d(3, width, 3, 2, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.Hardswish(),
        ]
        for kernel, wide, out, se, hard, stride in rows:
            layers.append(
                Inverted(width, wide // part, out // part, kernel, stride, se=se, hard=hard)
            )
            width = out // part
        last = 576 // part
        layers += [nn.Conv2d(width, last, 1, bias=False), nn.BatchNorm2d(last), nn.Hardswish()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Sequential(
            nn.Linear(last, 1024 // part),
            nn.Hardswish(),
            nn.Dropout(0.2),
            nn.Linear(1024 // part, CLASSES),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Autoencoder(nn.Module):
    """Its loss looks at the inputs: there is no label."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Linear(12, 6), nn.GELU(), nn.Linear(6, 3))
        self.up = nn.Sequential(nn.Linear(3, 6), nn.GELU(), nn.Linear(6, 12))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.down(x))


class TwoInputs(nn.Module):
    """A picture and a table of words, for a number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(8, 1)

    def forward(self, picture: torch.Tensor, words: torch.Tensor) -> torch.Tensor:
        seen = functional.max_pool2d(torch.relu(self.conv(picture)), 4).flatten(1)
        return self.head(torch.cat([seen, self.embed(words).sum(1)], dim=1))


class Lora(nn.Module):
    """A dense layer that stays, with an adapter of low rank that is learnt."""

    def __init__(self, base: nn.Linear, rank: int = 2) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.a.T @ self.b.T


def family(name: str) -> TaskSource:
    """Return one family with its loss and four samples, the same each time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        return _FAMILIES[name]()


def _labelled(model: nn.Module, *inputs: torch.Tensor) -> TaskSource:
    target = torch.randint(0, CLASSES, (len(inputs[0]),))
    return TaskSource(model, nn.CrossEntropyLoss(), (*inputs, target))


def _lora() -> TaskSource:
    body = nn.Sequential(Lora(nn.Linear(12, 16)), nn.ReLU(), Lora(nn.Linear(16, CLASSES)))
    return _labelled(body, torch.randn(4, 12))


def _two() -> TaskSource:
    inputs = (torch.randn(4, 1, 6, 6), torch.randint(0, 7, (4, 3)))
    return TaskSource(TwoInputs(), nn.MSELoss(), (*inputs, torch.randn(4, 1)))


_FAMILIES = {
    "mlp": lambda: _labelled(Mlp(), torch.randn(4, 12)),
    "resnet18-group": lambda: _labelled(ResNet18(group=True), torch.randn(4, 3, 32, 32)),
    "resnet18-batch": lambda: _labelled(ResNet18(group=False), torch.randn(4, 3, 32, 32)),
    "lstm": lambda: _labelled(Recurrent("lstm"), torch.randn(4, 6, 4)),
    "gru": lambda: _labelled(Recurrent("gru"), torch.randn(4, 6, 4)),
    "transformer": lambda: _labelled(Transformer(), torch.randint(0, CLASSES, (4, 6))),
    "mobilenet": lambda: _labelled(MobileNet(), torch.randn(4, 3, 32, 32)),
    "autoencoder": lambda: TaskSource(Autoencoder(), nn.MSELoss(), (torch.randn(4, 12), None)),
    "two-inputs": _two,
    "lora": _lora,
}
FAMILIES = tuple(_FAMILIES)
