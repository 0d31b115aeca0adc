"""The tutorials, typed as they stand."""

import json
import re
import shutil
import stat
import sys
from pathlib import Path

import pytest

from fedagent_cli import places
from fedagent_cli.demo.plan import EVERY_DIGIT, FEW_DIGITS
from fedagent_task.recipe.text import parse_recipe

from .machines import Machine, lan, why_not
from .pages import Page

machines = [
    pytest.mark.netns,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(why_not()), reason=why_not()),
]

SENSOR = Page("docs/tutorials/sensor.md")
SENSOR.skips("needs apt", "sudo apt install -y mosquitto mosquitto-clients")
(DOCTOR,) = SENSOR.takes("fedagent doctor")
(SPEAKS,) = SENSOR.takes(next(line for line in SENSOR.commands if line.startswith("while ")))
LISTENS, *ROLES = SENSOR.takes(
    "mosquitto_sub -v -t home/boiler",
    "fedagent edge start --name home",
    'fedagent start --name boiler --load-limit 1 --stream "mqtt://127.0.0.1:1883/home/boiler'
    '?features=outside:float32:-40..60,pump:float32:0..100&label=room:float32:-40..60"',
    "fedagent coordinator start --recipe sensor",
)
READS = SENSOR.takes(
    "fedagent status",
    "fedagent status --rounds 5",
    "fedagent export --model room.safetensors",
    'fedagent predict room.safetensors --count 5 --stream "mqtt://127.0.0.1:1883/home/boiler'
    '?features=outside:float32:-40..60,pump:float32:0..100&label=room:float32:-40..60"',
    "fedagent export --model room.npz",
)
ROOM = 20.1
"""The room of the page's prediction: the plane through all that its loop can say, at 5 and 50."""

OPINIONS = Page("docs/tutorials/opinions.md")
FA, RANDOM, DA = OPINIONS.takes(
    "fedagent demo --recipe fa-digits --dir fa",
    "fedagent demo --recipe fa-digits --policy random --dir fa-random",
    "fedagent demo --recipe da-digits --dir da",
)
FA_READS = OPINIONS.takes(
    "fedagent opinions --data-dir fa/coordinator",
    "fedagent opinions --data-dir fa/coordinator --round 0",
)
DA_READS = OPINIONS.takes("fedagent opinions --data-dir da/coordinator")
OBSERVE = Page("docs/observe.md")
STUDY = OBSERVE.takes(
    "fedagent testbed run cocs-decisions --full --set world.clients=8 --set rounds.count=30"
    " --dir study",
    "fedagent why agent-3 --data-dir study/coordinator --round 12",
)
OBSERVE.skips(
    "of a run of one's own: tests/e2e/test_demo.py asks why, tests/cli/test_watching.py watches, "
    "tests/e2e/test_observed.py scrapes",
    "fedagent status --watch",
    "fedagent why agent-2 --data-dir fedagent-demo/.../coordinator",
    "fedagent coordinator start --recipe digits --metrics 9100",
)
INTERRUPTED = 130
SIZE = 2
"""Who trains in a round."""
KINDS = (EVERY_DIGIT, FEW_DIGITS)


def stand_ins(machine: Machine) -> None:
    """Put stand-ins for mosquitto's clients on the PATH, where they are not installed."""
    folder = machine.home / "bin"
    folder.mkdir()
    for name, what in (("mosquitto_pub", "publish"), ("mosquitto_sub", "subscribe")):
        if shutil.which(name) is None:
            program = folder / name
            lines = (f"#!{sys.executable}", "import sys", f"from paho.mqtt import {what}")
            program.write_text("\n".join([*lines, CLIENTS[name]]), encoding="utf-8")
            program.chmod(program.stat().st_mode | stat.S_IEXEC)
    machine.path.append(folder)


CLIENTS = {
    "mosquitto_pub": "publish.single(sys.argv[2], sys.argv[4])",
    "mosquitto_sub": "subscribe.callback("
    "lambda c, u, m: print(m.topic, m.payload.decode(), flush=True), sys.argv[3])",
}


class TestSensor:
    pytestmark = machines

    def test_from_a_topic_to_a_model(self, tmp_path: Path) -> None:
        with lan(tmp_path, "192.168.1.10") as (pi,):
            stand_ins(pi)
            pi.has_broker("127.0.0.1")
            listener = pi.opens(LISTENS)
            speaker = pi.opens(SPEAKS)
            doctor = pi.opens(DOCTOR)
            listener.until('home/boiler {"outside": -?[0-9]+')
            listener.kill()
            *_, coordinator = [pi.opens(line) for line in ROLES]
            coordinator.until_round(2)  # one round may have few readings
            pi.types(*READS)
            (predict,) = [
                b.text for b in SENSOR.blocks if "room.npz" in b.text and b.language == "python"
            ]
            (pi.home / "predict.py").write_text(predict, encoding="utf-8")
            degrees = pi.types("python predict.py").removesuffix(" degrees\n")
            assert float(degrees) == pytest.approx(ROOM, abs=0.7)
            assert doctor.ended() in (0, 44), doctor.shown
            speaker.kill()


class TestOpinions:
    pytestmark = machines

    @pytest.mark.parametrize(
        ("demos", "reads", "shown", "part"),
        [
            ([FA, RANDOM], FA_READS, "accuracy", '"title":"Belief"'),
            ([DA], DA_READS, "volunteers", "What the devices knew: opinion"),
        ],
        ids=["analytics", "democratized"],
    )
    def test_from_the_demo_to_the_plot(
        self, tmp_path: Path, demos: list[str], reads: list[str], shown: str, part: str
    ) -> None:
        with lan(tmp_path, "192.168.1.10") as (machine,):
            for line in demos:
                demo = machine.opens(line)
                demo.until(r"round [2-9]/")
                demo.ctrl_c()
                assert demo.ended() == INTERRUPTED, demo.shown
                demo.until("all digits")
            assert shown in machine.types(*reads)
        folder = machine.home / demos[0].split("--dir ")[1].split()[0]
        agents = json.loads((folder / "report.json").read_text())["agents"]
        chosen = {kind: [a["ordered"] for a in agents if a["kind"] == kind] for kind in KINDS}
        # Who of them trains more often takes longer to show: tests/cli/test_demo_fleet.py.
        assert (len(chosen[EVERY_DIGIT]), len(chosen[FEW_DIGITS])) == (SIZE + 1, 9 - SIZE)
        assert part in (folder / "report.html").read_text()


@pytest.mark.parametrize("block", [b.text for b in OPINIONS.blocks if b.language == "toml"])
def test_the_tables_of_the_page_fit_a_recipe(block: str) -> None:
    digits = places.find_recipe("digits").read_text()
    parse_recipe(f"{digits}\n{block}")


class TestObserving:
    pytestmark = machines

    def test_a_study_is_asked_why(self, tmp_path: Path) -> None:
        with lan(tmp_path, "192.168.1.10") as (machine,):
            shown = machine.types(*STUDY)
        assert "round 12" in shown
        assert re.search("selected|unavailable|not fit", shown), shown
