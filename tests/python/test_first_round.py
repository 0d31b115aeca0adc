"""What the comparison with Flower counts, counted here too: the bar of fifteen lines holds."""

from bench.first_round import FEDAGENT, FLOWER, HERE


def test_a_module_needs_fifteen_lines_at_most() -> None:
    assert FEDAGENT.lines <= 15
    code = (HERE / FEDAGENT.name / "digits.py").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) == FEDAGENT.lines + 1


def test_both_learn_the_same_model_from_the_same_data() -> None:
    ours, theirs = ((HERE / one.name / one.files[0]).read_text() for one in (FEDAGENT, FLOWER))
    for part in ("nn.Conv2d(1, 16, 3, padding=1)", "nn.Linear(1024, 10)", "/ 16", "32", "0.1"):
        assert part in ours
        assert part in theirs
