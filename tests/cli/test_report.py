"""The report: what it says in words, what it draws, and that its page is whole."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedagent_cli.drawing import by_round
from fedagent_cli.report.page import render, write_report
from fedagent_cli.report.plots import draw_all, quality_plots
from fedagent_cli.report.run_report import NOT_ENDED, ReportAgent, RunReport
from fedagent_task.measures import ACCURACY, DEVICE_SCORE, LOSS
from tests.fakes.run_reports import a_round, an_agent, classes, everything, numbers, with_rounds


def agent(ordered: int = 12, **reasons: int) -> ReportAgent:
    given = {reason.replace("__", " "): count for reason, count in reasons.items()}
    counts: dict[str, int] = {}
    for reason, count in given.items():
        counts[reason.split()[0]] = counts.get(reason.split()[0], 0) + count
    return an_agent(
        "a", "kitchen", ordered=ordered, in_time=0, paid=0, outcomes=counts, reasons=given
    )


@pytest.mark.parametrize(
    ("one", "reason", "hint"),
    [
        (agent(missed__unanswered=12), "never delivered an update: it never answered.", "doctor"),
        (
            agent(missed__silent=12),
            "never delivered an update: its edge did not report.",
            "the edge",
        ),
        (
            agent(missed=12),
            "it accepted its order, but the round closed before its update arrived.",
            "rounds.deadline_s",
        ),
        (agent(declined__no_data=9, missed=3), "arrived on its stream, 9 of them.", "--stream"),
        (agent(late=12), "in time: its update came after the deadline.", "rounds.deadline_s"),
        (agent(rejected__norm=12), "its update was refused (norm).", "limits"),
        (agent(declined__new_reason=12), "it declined (new_reason).", "its log says more"),
        (agent(1, gone=1), "was ordered once and never delivered", "its network link"),
    ],
)
def test_who_never_delivered_is_said_with_why_and_what_to_do(
    one: ReportAgent, reason: str, hint: str
) -> None:
    line = one.undelivered()
    assert line.startswith("kitchen was ordered")
    assert reason in line
    assert hint in line


def test_the_most_frequent_reason_counts_whatever_its_details_say() -> None:
    busy = {"declined load: 0.91 of 1": 3, "declined load: 0.93 of 1": 5, "missed": 6}
    one = replace(agent(14), outcomes={"declined": 8, "missed": 6}, reasons=busy)
    line = one.undelivered()
    assert "too little memory or time, 8 of them (load: 0.93 of 1)" in line


def test_who_delivered_or_was_never_ordered_is_not_named() -> None:
    delivered = replace(agent(missed=11), in_time=1)
    assert not delivered.undelivered()
    assert not agent(0).undelivered()
    said = render(classes(), [])
    assert "was ordered 12 times and never delivered an update: it never answered" in said
    assert "kitchen was ordered" not in said


def test_a_regression_shows_its_error_and_no_accuracy() -> None:
    html = render(numbers(), [])
    assert "accuracy" not in html
    assert "<th>error</th><th>mean absolute error</th><th>loss</th>" in html
    assert "error, held-out samples" in html
    assert "not measured" not in html


def test_a_run_without_held_out_samples_shows_training_and_says_so() -> None:
    html = render(numbers(held_out=False), [])
    assert "training error, as devices report it" in html
    assert "not measured on held-out samples (evaluation.dataset)" in html
    silent = render(replace(classes(), measures=()), [])
    assert "devices report neither score nor loss" in silent


def test_a_target_of_a_regression_is_reached_from_above() -> None:
    story = replace(numbers(), target=5.0)
    ((target, row),) = story.reached()
    assert target == 5.0
    assert row is not None
    assert row.round == next(r.round for r in story.rounds if r.metrics["rmse"] <= 5.0)
    assert "<h2>Time to error</h2>" in render(story, [])
    evaluated = with_rounds(
        replace(everything(), measures=story.measures, target=0.0), *story.rounds
    )
    targets = [target for target, _ in evaluated.reached()]
    assert targets == sorted(targets, reverse=True)
    assert story.best is not None
    assert min(targets) > story.best == min(r.metrics["rmse"] for r in story.rounds)
    assert numbers().reached() == []
    scored = with_rounds(
        replace(classes(), measures=(DEVICE_SCORE,), target=0.5), *classes().rounds
    )
    assert "<h2>Time to score</h2>" in render(scored, [])


@pytest.mark.parametrize("rounds", [1, 2, 3, 60])
def test_rounds_are_counted_in_whole_numbers(rounds: int) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (extra report)")
    from matplotlib.figure import Figure

    axes = Figure(figsize=(3.6, 2.7)).subplots()
    axes.plot(range(1, rounds + 1), range(rounds))
    by_round(axes)
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert ticks
    assert all(tick == round(tick) for tick in ticks)
    assert len(ticks) <= 12


@pytest.mark.parametrize(
    ("story", "titles"),
    [
        (classes(), ["Accuracy", "Loss"]),
        (numbers(), ["Error", "Loss"]),
        (numbers(held_out=False), ["Error", "Loss"]),
        (replace(classes(), measures=()), []),
    ],
    ids=["classes", "numbers", "training", "nothing"],
)
def test_what_was_measured_is_plotted(story: RunReport, titles: list[str]) -> None:
    pytest.importorskip("matplotlib", reason="plots need matplotlib (extra report)")
    from matplotlib.figure import Figure

    plots = quality_plots(story, story.rounds)
    assert [title for title, _, _ in plots] == titles
    for title, _, draw in plots:
        axes = Figure().subplots()
        draw(axes)
        assert axes.get_ylabel() == title.lower()
        assert axes.get_lines()


def test_what_devices_call_themselves_is_no_formula_and_no_warning() -> None:
    pytest.importorskip("matplotlib")
    names = (r"$\frac{a$", "日本語")
    given = replace(
        classes(),
        agents=tuple(replace(agent(), label=name) for name in names),
        edges={"e1": r"$\q$", "e2": "cellar"},
    )
    drawn = "".join(svg for _, _, svg in draw_all(given))
    assert all(name in drawn for name in (*names, r"$\q$"))


def test_powers_of_ten_are_numbers() -> None:
    pytest.importorskip("matplotlib")
    rows = numbers().rounds
    steep = tuple(replace(row, metrics={"loss": 1e3 / 10**row.round}) for row in rows)
    drawn = {title: svg for title, _, svg in draw_all(with_rounds(numbers(), *steep))}
    assert ">0.01</text>" in drawn["Loss"]


def a_run_report(rounds: int = 3) -> RunReport:
    rows = [
        a_round(number, **({} if number == 2 else {"accuracy": 0.5}))
        for number in range(1, rounds + 1)
    ]
    agent = an_agent("a1", "<b>kitchen", outcomes={"arrived": 3, "late": 1})
    plain = replace(classes(3), agents=(agent,), edges={"e1": "hall"}, measures=(ACCURACY, LOSS))
    return with_rounds(plain, *rows)


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_the_page_is_whole_and_asks_nobody(tmp_path: Path, rounds: int) -> None:
    story = a_run_report(rounds)
    html = write_report(story, tmp_path).read_text()
    outside = html.replace("http://www.w3.org/", "")
    assert "http://" not in outside
    assert "https://" not in outside
    assert "<script" not in html
    assert "<b>kitchen" not in html
    assert html.count("<figure") == (5 if rounds else 0)
    assert html.count("<svg") == 2 * html.count("<figure")  # for a desk, and for a phone
    assert json.loads((tmp_path / "report.json").read_text())["rounds_wanted"] == 3


def test_the_page_says_how_far_a_run_is() -> None:
    story = a_run_report(3)
    going = {"state": NOT_ENDED}
    for made, says in (
        (story, "complete after 3 of 3 rounds"),
        (replace(story, rounds_wanted=9), "ended early after 3 of 9 rounds"),
        (replace(story, rounds_wanted=9, facts=going), "not over after 3 of 9 rounds"),
        (replace(story, rounds_wanted=0, facts=going), "not over after 3 rounds"),
        (replace(story, rounds_wanted=0), "ended after 3 rounds"),
    ):
        html = render(made, [])
        assert says in html
        assert ("no end set" in html) == (made.rounds_wanted == 0)


def test_a_controlled_run_shows_iterations_rents_latency_and_loss(tmp_path: Path) -> None:
    plain = a_run_report()
    rows = tuple(
        replace(
            row,
            iterations=row.round + 4,
            rented="e1",
            rent_micro=250_000,
            notes={"rho": row.round + 3.5, "lambda_load": 0.0, "lambda_quality": 0.2},
            latency_s=(0.1, 0.2, 0.1, 0.05) if row.round > 1 else (),
            metrics={**row.metrics, "loss": 1.0 / row.round},
        )
        for row in plain.rounds
    )
    story = replace(with_rounds(plain, *rows), conclusion="the budget pays no more <rent>")
    html = write_report(story, tmp_path).read_text()
    for title in ("Local iterations", "Rented edge", "Latency of the slowest device", "Loss"):
        assert f"<h2>{title}</h2>" in html
    assert "the budget pays no more &lt;rent&gt;" in html
    assert "<td>0.75</td>" in html
    assert json.loads((tmp_path / "report.json").read_text())["rounds"][1]["rented"] == "e1"
    assert "times rented" not in render(plain, [])


def test_the_page_without_matplotlib_says_what_to_install() -> None:
    html = render(a_run_report(), [])
    assert "matplotlib: <code>fedagent doctor</code>" in html
    assert "<table>" in html


def test_plots_have_ids_of_their_own_and_the_pages_colour() -> None:
    drawn = [svg for _, _, svg in draw_all(a_run_report())]
    ids = [part.split('"')[0] for svg in drawn for part in svg.split(' id="')[1:]]
    assert len(ids) == len(set(ids))
    assert all("currentColor" in svg for svg in drawn)


def test_gaps_between_claims_and_observations_are_drawn_where_they_are_known() -> None:
    plain = a_run_report()
    assert "Claimed and observed" not in {title for title, _, _ in draw_all(plain)}
    known = replace(plain.agents[0], claim_gap=2.4)
    given = replace(plain, agents=(known, *plain.agents[1:]))
    drawn = {title: svg for title, _, svg in draw_all(given)}
    assert "observed over claimed time" in drawn["Claimed and observed"]
