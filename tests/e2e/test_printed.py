"""What the commands print of results that are known: every column, bound and sentence, without a
run.
"""

from __future__ import annotations

import io
import math
import re
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise import cli
from equipoise.callbacks import ClientProgress, RunStart
from equipoise.cli import comparison_output, output, progress, run_output
from equipoise.comparison.plan import Cell
from equipoise.comparison.table import Comparison
from equipoise.experiment import ConfigurationError, Experiment
from equipoise.runs import ModelResult, Run
from equipoise.runs.clinical import ClinicalValue
from equipoise.runs.curves import Curve
from equipoise.runtime.evaluation_messages import PredictShared
from equipoise.storage.store import RoundRecord, RunError, Store
from tests.helpers.plans import plan
from tests.helpers.stores import change, entry, made_up_result, made_up_run

Printed = Callable[[], list[str]]


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> Printed:
    """The lines that the console got so far, without spaces at their ends."""
    screen = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=screen, width=200, color_system=None))
    return lambda: [line.rstrip() for line in screen.getvalue().splitlines()]


@pytest.fixture
def coloured(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """The same with the signs that a terminal takes for colours."""
    screen = io.StringIO()
    monkeypatch.setattr(
        output,
        "console",
        Console(file=screen, width=200, force_terminal=True, color_system="standard", _environ={}),
    )
    return screen


def test_numbers_stand_right_and_words_left(printed: Printed) -> None:
    rows = [["a", 5, "+1", "95", "", "x", math.nan], ["bb", 50, "-10", "3", "7", "1", 1.5]]
    output.table(["name", "number", "sign", "digits", "gaps", "mixed", "float"], rows, "a title")
    output.table(["header only"], [])
    assert printed() == [
        "a title",
        "name  number  sign  digits  gaps  mixed  float",
        "a          5    +1      95        x        nan",
        "bb        50   -10       3     7  1        1.5",
        "header only",
    ]


def test_a_line_is_broken_at_the_width_of_the_terminal_unless_it_is_to_be_copied(
    printed: Printed,
) -> None:
    output.say("x " * 150)
    assert len(printed()) == 2
    output.say("y " * 150, wrap=False)
    assert len(printed()) == 3


@pytest.mark.parametrize("setting", ["training.lr", "=3", ""])
def test_a_setting_is_a_key_and_a_value(setting: str) -> None:
    with pytest.raises(
        ConfigurationError, match="--set: expected KEY=VALUE such as training.lr=0.01, got"
    ):
        output.parse_settings([setting])
    assert output.parse_settings([" a.b =[1, x]", "c=", "d=e=f"]) == {
        "a.b": [1, "x"],
        "c": None,
        "d": "e=f",
    }


def test_a_run_without_a_baseline_has_three_columns(printed: Printed) -> None:
    result = made_up_result("fedprox", 4, {"a": 0.25, "b": 0.75})
    run_output.show(replace(result, last_round=3))
    assert printed() == [
        "fedprox on digits, partition iid, 2 clients, seed 4: stopped early, round 3 of 5",
        "accuracy in % of the global model on test data",
        "client  samples  global",
        "a           100    25.0",
        "b           100    75.0",
        "average 50.0, worst 25.0, best 75.0, std over clients 25.0",
    ]


def test_gains_are_shown_with_their_test_and_counted(printed: Printed) -> None:
    sizes = dict.fromkeys("abc", 40)
    alone = made_up_result("standalone", 1, {"a": 0.5, "b": 0.5, "c": 0.5, "d": 0.5})
    values = {"a": 0.45, "b": 0.9, "c": 0.5, "d": math.nan, "e": 0.5}
    result = made_up_result("fedavg", 1, values, test_sizes=sizes, majority={"a": 0.4})
    run_output.show(result.against(alone))
    rows = {line.split()[0]: " ".join(line.split()) for line in printed() if line[:2] in
            ("a ", "b ", "c ", "d ", "e ")}  # fmt: skip
    assert rows == {
        "a": "a 100 50.0 45.0 40.0 -5.0 loses (may be chance)",
        "b": "b 100 50.0 90.0 +40.0 gains",
        "c": "c 100 50.0 50.0 0.0 equal",
        "d": "d 100 50.0 – –",
        "e": "e 100 50.0",
    }
    assert "1 of 4 clients gain, 1 lose" in printed()[-1]
    assert "1 gain, 0 lose" in printed()[-1], "significant"


def test_a_gain_in_an_error_is_a_fall(printed: Printed) -> None:
    alone = made_up_result("standalone", 1, {"a": 5.0}, "rmse")
    run_output.show(made_up_result("fedavg", 1, {"a": 6436.0}, "rmse").against(alone))
    assert any("-6431.0000" in line and "loses" in line for line in printed())
    assert "average gain -6431.0000" in printed()[-1]


def test_notes_outdated_runs_and_rejected_replies_are_shown(printed: Printed) -> None:
    result = made_up_result("fedavg", 1, [0.5])
    facts = {"notes": ["take care"]}
    run_output.show(replace(result, outdated="written by 0.1", rejected=3, facts=facts))
    lines = printed()
    assert any("outdated: written by 0.1" in line for line in lines)
    assert "3 replies did not count" in lines and "take care" in lines


def test_the_best_round_and_the_averages_of_other_metrics_are_shown(printed: Printed) -> None:
    others = {"loss": {"a": 1.25}, "auroc": {}, "f1": {"a": 0.625}}
    curve = Curve((1, 2), (0.6, 0.5))
    result = made_up_result("fedavg", 1, {"a": 0.5}, others=others, curve=curve)
    run_output.show(result)
    lines = printed()
    assert lines[-2].endswith("best round 1 (60.0)")
    assert "loss 1.2500, f1 62.5" in lines[-1] and "--metric loss" in lines[-1]
    final = Curve((1, 2, 3), (0.6, 0.5, 0.7), final_phase=True)
    run_output.show(made_up_result("fedavg", 1, {"a": 0.7}, curve=final))
    assert printed()[-1].endswith("best after the final phase (70.0)")


@pytest.mark.parametrize(
    ("value", "colour"), [(0.6, "\x1b[32mgains"), (0.4, "\x1b[31mloses"), (0.5, " equal")]
)
def test_gains_are_green_and_losses_red(value: float, colour: str, coloured: io.StringIO) -> None:
    alone = made_up_result("standalone", 1, [0.5])
    run_output.show(made_up_result("fedavg", 1, [value]).against(alone))
    assert colour in coloured.getvalue()


def test_a_run_without_a_value_says_so(printed: Printed) -> None:
    empty = made_up_result("fedavg", 1, {})
    run_output.show(replace(empty, status="running"))
    assert printed()[1:] == ["nothing measured yet"]
    run_output.show(replace(empty, status="running", facts={"notes": ["a reason"]}))
    assert printed()[3:] == ["a reason", "no client has a value"]


@pytest.mark.parametrize(("metric", "first"), [("accuracy", "0"), ("loss", "50")])
def test_of_many_clients_the_ten_worst_and_the_ten_best_are_shown(
    metric: str, first: str, printed: Printed
) -> None:
    values = {str(k): k / 50 for k in range(51)}
    run_output.show(made_up_result("fedavg", 1, values, metric))
    lines = printed()
    listed = [line.split()[0] for line in lines if re.match(r"\d+ +100 ", line.strip())]
    assert len(listed) == 20 and listed[0] == first
    assert any("of 51 clients; all: equipoise show fedavg-1 --json" in line for line in lines)
    assert any(line.startswith("quantiles over clients: 1 % ") for line in lines)


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_a_diverged_client_is_among_the_worst(metric: str, printed: Printed) -> None:
    values = {f"c{k}": k / 50 for k in range(51)} | {"broken": math.nan}
    run_output.show(made_up_result("fedavg", 1, values, metric))
    assert next(line for line in printed() if "100 " in line).startswith("broken")


def test_clinical_measures_are_of_the_clients_with_test_data_of_their_own(
    printed: Printed,
) -> None:
    value = ClinicalValue(0.5, reason="few samples")
    result = made_up_result("fedavg", 1, {"a": 0.5, "b": 0.5})
    measures = {"a": {"auroc": value, "balanced_accuracy": value}}
    served = ModelResult("global", result.metrics, measures)
    result = replace(result, models={"global": served})
    run_output.show(result)
    start = next(k for k, line in enumerate(printed()) if "classes are unequal" in line)
    assert printed()[start + 1].split("  ") == ["client", "AUROC", "balanced accuracy"]
    assert printed()[start + 2].split() == ["a", "50.0", "50.0"]
    assert "few samples" in printed()[start + 3] and "1 of 2 clients" in printed()[start + 4]
    run_output.show(replace(result, main_split="shared"))
    assert "no counts" not in printed()[-1]


def test_numbers_that_do_not_exist_are_null_in_json() -> None:
    given = {"a": {"b": math.nan, "c": math.inf, "d": 1.5}, "e": "text", "f": None, "g": 3}
    assert output.plain(given) == {
        "a": {"b": None, "c": None, "d": 1.5},
        "e": "text",
        "f": None,
        "g": 3,
    }


def test_a_profile_is_of_medians_over_rounds_without_nodes(
    printed: Printed, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "run", rounds=3)
    change(run, "delete from seconds")
    rows = ((1, "clients", 0.3), (1, "clients@node", 9.0), (2, "clients", 0.1))
    for number, phase, seconds in (*rows, (2, "transport", 0.2), (3, "clients", 0.2)):
        change(run, f"insert into seconds values ({number}, '{phase}', {seconds})")
    change(run, "insert into seconds values (3, 'transport', 0.3)")
    run_output.profile(Run(run))
    assert [line.split() for line in printed()[1:]] == [
        ["clients", "200.00", "50%"],
        ["transport", "200.00", "50%"],
    ]


def test_the_summary_of_a_run_ends_with_how_to_look_again(printed: Printed, tmp_path: Path) -> None:
    made_up_run(tmp_path / "alone", "standalone", rounds=1)
    run_output.summary(Run(made_up_run(tmp_path / "run", rounds=1)))
    assert f"equipoise show {tmp_path / 'run'}" in printed()[-1]
    assert printed()[-2].startswith(f"against training alone ({tmp_path / 'alone'})")


def test_only_a_run_is_removed_and_only_one_that_nobody_works_on(tmp_path: Path) -> None:
    output.remove_run(tmp_path / "nothing")
    (tmp_path / "other").mkdir()
    with pytest.raises(
        RunError, match="other exists but is not a run; remove it yourself or choose another --out"
    ):
        output.remove_run(tmp_path / "other")
    run = made_up_run(tmp_path / "run", rounds=1)
    holding = Store(run, writing=True)
    with pytest.raises(RunError):
        output.remove_run(run)
    assert (run / "run.db").exists()
    holding.close()
    output.remove_run(run)
    assert not run.exists() and (tmp_path / "other").exists()


# While a run is in progress.


def measured(
    number: int,
    finish: bool = False,
    metric: str = "accuracy",
    values: tuple[float, ...] = (0.25, 0.75),
) -> RoundRecord:
    rows = [
        (client, "global", "final" if finish else "received", "test", metric, value)
        for client, value in zip("ab", values, strict=False)
    ]
    return RoundRecord(
        number, 0, ["a", "b", "c"], ["a", "b"], measurements=rows, main="global", finish=finish
    )


def test_without_a_terminal_every_round_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = progress.progress(quiet=False)
    for record in (
        measured(1),
        measured(2, metric="loss"),
        measured(3, values=()),
        measured(4, finish=True),
    ):
        lines.on_round(record)
    assert capsys.readouterr() == (
        "",
        "round 1: global accuracy 0.500, lowest 0.250\nround 2: global loss 0.500, highest "
        "0.750\nround 3: 2 replies\nafter the last round: global accuracy 0.500, lowest 0.250\n",
    )


@pytest.mark.parametrize(
    ("said", "line"), [(("go on with this",), "\ngo on with this\n"), ((), "\nstopped\n")]
)
def test_an_interrupted_run_says_how_to_go_on(
    said: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(KeyboardInterrupt), progress.announced_interrupts():
        raise KeyboardInterrupt(*said)
    assert capsys.readouterr() == ("", line)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """A terminal for what is printed on standard error."""
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, color_system=None)
    for place in (progress, comparison_output):
        monkeypatch.setattr(place, "Console", lambda **_: console)
    yield screen


def last(screen: io.StringIO, word: str) -> str:
    """The last state of the line that begins with a word."""
    return [
        line
        for line in re.split(r"\x1b\[[0-9?]*[A-Za-z]|[\r\n]+", screen.getvalue())
        if line.startswith(word)
    ][-1]


def test_rounds_and_clients_have_a_bar_each(terminal: io.StringIO) -> None:
    (bars,) = progress.progress(quiet=False)
    bars.on_start(RunStart(Path("run"), 3, 9))
    bars.on_client(ClientProgress(PredictShared.step, 1, 5))
    bars.on_round(measured(3))
    bars.on_client(ClientProgress("client", 4, 6))
    bars.on_round(measured(12, finish=True, values=(1.0, 1.0)))
    bars.on_end(Path("run"), None)
    assert "3/9" in last(terminal, "rounds") and "global accuracy 1.000, lowest 1.000" in last(
        terminal, "rounds"
    ), "no round of its own"
    assert (
        "4/6" in last(terminal, "clients")
        and "training" in last(terminal, "clients")
        and "node" not in terminal.getvalue()
    )


def test_nothing_is_drawn_before_a_run_starts(terminal: io.StringIO) -> None:
    (bars,) = progress.progress(quiet=False)
    bars.on_client(ClientProgress("client", 1, 2))
    assert "clients" not in terminal.getvalue()


# Comparisons.


def cells(methods: tuple[str, ...] = ("fedprox",), **more: Any) -> list[Cell]:
    return plan(
        {"rounds": 4, "data": {"name": "digits", "clients": 3}},
        list(methods),
        **{"seeds": [1], **more},
    )


def test_a_plan_lists_every_run_and_counts_them(printed: Printed) -> None:
    planned = cells(grid={"method.mu": [0.25, 0.5]})
    comparison_output.show_plan(planned)
    lines = printed()
    assert lines[0].split() == ["method", "partition", "seed", "setting", "folder"]
    assert [line.split() for line in lines[1:4]] == [
        [
            cell.label,
            cell.partition,
            "1",
            *([f"method.mu={cell.setting[0][1]}"] if cell.setting else []),
            cell.name,
        ]
        for cell in planned
    ]
    assert [cell.setting for cell in planned] == [(), (("method.mu", 0.25),), (("method.mu", 0.5),)]
    assert lines[4] == "plan: 3 runs of 4 rounds"


def test_a_comparison_without_a_terminal_is_told_in_lines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    alone, first, _ = cells(grid={"method.mu": [0.25, 0.5]})
    with comparison_output.progress(False) as watching:
        watching.on_plan([alone, first], 3)
        watching.on_round(first, 1)
        watching.on_end(alone, None)
        watching.on_end(first, "out of\nluck")
    assert capsys.readouterr() == (
        "",
        f"2 runs to do, 3 already finished\nstandalone, {alone.partition}, seed 1: done\nfedprox "
        f"mu=0.25, {first.partition}, seed 1: failed: out of\\nluck\n",
    )
    with comparison_output.progress(True) as watching:
        watching.on_plan([alone], 0)
        watching.on_end(alone, "failure")
    assert capsys.readouterr() == ("", "")


def test_bars_of_a_comparison_sum_up_the_rounds_of_all_runs(terminal: io.StringIO) -> None:
    alone, first, second = cells(grid={"method.mu": [0.25, 0.5]})
    with comparison_output.progress(False) as watching:
        watching.on_plan([alone, first, second], 0)
        assert "already finished" not in terminal.getvalue()
        watching.on_plan([alone, first, second], 2)
        watching.on_round(alone, 4)
        watching.on_round(first, 1)
        watching.on_round(first, 3)
        watching.on_end(alone, None)
        watching.on_end(second, "no luck")
    shown = terminal.getvalue()
    assert (
        "2 runs already finished, 3 to do" in shown
        and f"failed fedprox mu=0.5, {second.partition}, seed 1: no luck" in shown
    )
    assert "7/12 rounds" in last(terminal, "all runs") and "3/4 rounds" in last(
        terminal, "fedprox mu=0.25"
    )
    final = shown.replace("\r", "\n").rpartition("all runs")[2]
    assert (
        "standalone" not in final
        and "fedprox mu=0.25" in final
        and "failed standalone" not in shown
    ), "what is over is out of sight"


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("7", [7]),
        ("0-2", [0, 1, 2]),
        (" 1 , 3-4", [1, 3, 4]),
        ("5-5", [5]),
        ("1-1000", list(range(1, 1001))),
    ],
)
def test_seeds_are_numbers_and_ranges(text: str, seeds: list[int]) -> None:
    assert comparison_output.parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "1-a", "3-2", "1,,2", "1-1001"])
def test_other_seeds_are_refused(text: str) -> None:
    with pytest.raises(
        ConfigurationError, match="--seeds: expected numbers and ranges such as 1,2,3 or 1-5, got"
    ):
        comparison_output.parse_seeds(text)


@pytest.mark.parametrize(
    ("text", "asked"),
    [("1", False), (" 2 ", True), ("1000", True), ("1001", False), ("1,2", False), ("1-2", False)],
)
def test_a_number_that_may_be_meant_as_how_many_is_asked_about(
    text: str, asked: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    comparison_output.ask_about_seeds(text)
    assert capsys.readouterr().err == (
        f"--seeds {text.strip()} is one seed; did you mean 1-{text.strip()}?\n" if asked else ""
    )


def compared(clients: int = 3) -> Comparison:
    alone = made_up_result("standalone", 1, [0.5] * clients)
    own = made_up_result("fedavg", 1, [0.5 + 0.1 * (k - 1) for k in range(clients)])
    entries = [entry("standalone", alone), entry("fedavg", own, alone)]
    return Comparison(entries, "fedavg", folder=Path("c"))


@pytest.mark.parametrize("clients", [3, 21])
def test_a_comparison_shows_its_table_and_the_most_harmed_clients_first(
    clients: int, printed: Printed
) -> None:
    comparison_output.show(compared(clients))
    lines = printed()
    assert lines[0] == "iid" and lines[1].startswith("method")
    assert {line.split()[0] for line in lines[2:4]} == {"standalone", "fedavg"}
    start = next(k for k, line in enumerate(lines) if "most harmed first" in line)
    assert lines[start + 1].split() == ["client", "alone", "fedavg"]
    assert lines[start + 2].split() == ["0", "50.0", "-10.0"]
    assert lines[start + 2 + min(clients, 20)].startswith("clients that lose")
    assert any("1 more clients in comparison.json" in line for line in lines) == (clients == 21)
    assert "equipoise report c" in lines[-1] and "best, second best" in lines


def test_without_runs_of_training_alone_there_is_no_table_of_gains(printed: Printed) -> None:
    one = made_up_result("fedavg", 1, [0.5, 0.6])
    comparison_output.show(Comparison([entry("fedavg", one)], "fedavg", folder=Path("c")))
    assert not any("who gains" in line for line in printed())


@pytest.mark.parametrize(
    ("width", "blocks"), [(20, [["b", "c"]]), (19, [["b"], ["c"]]), (12, [["b"], ["c"]])]
)
def test_a_table_that_is_too_wide_is_broken_into_several(
    width: int, blocks: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The columns take 3 + 2, 6 + 2 and 5 + 2 signs."""
    screen = io.StringIO()
    monkeypatch.setattr(output, "console", Console(file=screen, width=width, color_system=None))
    comparison_output.wide_table(["a", "b", "c"], [["xyz", "123456", "12345"]])
    lines = screen.getvalue().splitlines()
    assert [line.split()[1:] for line in lines if line.startswith("a")] == blocks
    assert sum(line.startswith("xyz") for line in lines) == len(blocks), (
        "the first column is repeated"
    )
    if width == 20:
        assert [line.rstrip() for line in lines] == ["a         b      c", "xyz  123456  12345"]


# How errors end.


def raised(error: Exception, name: str = "equipoise.somewhere") -> Exception:
    """The error as if code of that module had raised it."""
    try:
        exec("def fail(error):\n    raise error", space := {"__name__": name})
        space["fail"](error)
    except Exception as caught:
        return caught
    raise AssertionError


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "not enough memory; use less data, a smaller model or fewer --workers"),
        (
            MemoryError("9 GB"),
            "not enough memory (9 GB); use less data, a smaller model or fewer --workers",
        ),
        (OSError(28, "No space left", "x\n"), "x\\n: No space left"),
        (OSError(28, "No space left"), "No space left"),
        (
            sqlite3.DatabaseError("torn"),
            "the folder of a run is damaged (torn); restore it from a copy, or run the experiment "
            "again",
        ),
        (ConfigurationError("one\ntwo"), "one\ntwo"),
        (RunError("one\n  two"), "one two"),
        (raised(ValueError("ours")), "ours"),
        (raised(OSError("ours")), "ours"),
        (raised(ValueError("theirs"), "numpy.core"), None),
        (raised(TypeError("a bug")), None),
    ],
)
def test_what_a_user_can_mend_is_a_sentence_and_a_bug_is_none(
    error: Exception, sentence: str | None
) -> None:
    assert cli._sentence(error) == sentence


def test_the_console_entry_ends_with_a_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(error: BaseException, *words: str) -> object:
        def app() -> None:
            raise error

        monkeypatch.setattr("sys.argv", ["equipoise", *words])
        monkeypatch.setattr(cli, "app", app)
        with pytest.raises(SystemExit) as end:
            cli.main()
        return end.value.code

    assert ended(KeyboardInterrupt()) == 130 and capsys.readouterr().err == ""
    assert ended(RunError("no run")) == 2 and capsys.readouterr() == ("", "error: no run\n")
    assert ended(RunError("not reached"), "a\udcff") == 2
    assert "expected words and names of files in UTF-8; rename the file" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        ended(ZeroDivisionError())


def test_data_are_looked_at_once_before_the_missing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Experiment] = []
    monkeypatch.setattr(comparison_output, "before_training", seen.append)
    planned = cells()
    comparison_output.show_data_report([])
    comparison_output.show_data_report(planned)
    assert seen == [planned[0].experiment]
    monkeypatch.setattr(
        comparison_output,
        "before_training",
        lambda wanted: (_ for _ in ()).throw(ValueError("unreadable")),
    )
    comparison_output.show_data_report(planned)  # each run will say so itself
