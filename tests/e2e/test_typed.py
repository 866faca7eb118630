"""What commands make of the words that are typed: settings, files and what is handed on, without
doing the work.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

import equipoise as eq
from equipoise import methods
from equipoise.cli import (
    compare,
    comparison_output,
    data,
    data_output,
    output,
    run_output,
    watch,
)
from equipoise.cli.methods import _cell, _check
from equipoise.data import sets
from equipoise.data.check import ColumnReport, DataReport, SiteReport
from equipoise.data.schema import Schema
from equipoise.storage.store import RunError
from equipoise.validation.imports import FromFile
from tests.helpers import audits
from tests.helpers.stores import made_up_run
from tests.helpers.terminal import Terminal


class Calls(list[Any]):
    """Remembers what it was called with, and answers with what it was given."""

    answer: Any = None

    def __call__(self, *words: Any, **named: Any) -> Any:
        self.append((words, named))
        return self.answer


def calls(answer: Any = None) -> Calls:
    made = Calls()
    made.answer = answer
    return made


# run, resume


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Record the runs that a command would start; nothing runs or prints."""
    made = calls("finished")
    monkeypatch.setattr("equipoise.simulate.start", made)
    monkeypatch.setattr("equipoise.simulate.resume", made)
    monkeypatch.setattr("equipoise.transports.workers.processes.allow_fork", lambda: print("plain"))
    for name in ("summary", "profile"):
        monkeypatch.setattr(run_output, name, lambda run, name=name: print(name, run))
    return made


def test_flags_of_run_are_settings(started: Calls, equipoise: Terminal) -> None:
    flags = {
        "--data": "digits",
        "--partition": "iid",
        "--clients": 5,
        "--label": "ill",
        "--model": "cnn",
        "--method": "fedprox",
        "--weights": "feddisco",
        "--rounds": 7,
        "--seed": 8,
        "--fraction": 0.5,
        "--workers": 0,
        "--device": "cuda",
    }
    answer = equipoise(
        "run",
        *[word for pair in flags.items() for word in pair],
        "--set",
        "method.mu=0.25",
        "--out",
        "o",
        "--quiet",
    )
    ((wanted, out, callbacks, connect, describe), _), *_ = started
    assert (answer.code, answer.out) == (0, "plain\nsummary finished\n")
    assert connect is None and describe is None
    assert (
        wanted.model,
        wanted.rounds,
        wanted.seed,
        wanted.participation.fraction,
        wanted.workers,
        wanted.device,
    ) == (
        "cnn",
        7,
        8,
        0.5,
        0,
        "cuda",
    )
    assert (
        wanted.method == {"name": "fedprox", "mu": 0.25, "weights": {"name": "feddisco"}}
        and out == Path("o")
        and callbacks == []
    )
    assert (wanted.data.name, wanted.data.partition, wanted.data.clients, wanted.data.label) == (
        "digits",
        "iid",
        5,
        "ill",
    )


def test_run_says_what_it_learns_from_when_it_begins_unless_quiet(
    started: Calls, equipoise: Terminal
) -> None:
    for quiet in (["--quiet"], []):
        equipoise("run", "--data", "digits", "--out", "o", "--profile", *quiet)
        (*_, describe), _ = started[-1]
        assert (describe is None) == bool(quiet)
    assert equipoise("run", "--profile").out == "plain\nsummary finished\nprofile finished\n"


def test_run_on_a_cluster_takes_no_workers(started: Calls, equipoise: Terminal) -> None:
    assert (
        "expected no --workers together with it, got 0"
        in equipoise("run", "--cluster", "auto", "--workers", "0").err
        and not started
    )
    equipoise("run", "--cluster", "h:1", "--trust-network", "--quiet")
    (_, _, _, connect, _), _ = started[0]
    assert connect.keywords == {"address": "h:1", "trust_network": True}


def test_overwrite_removes_only_what_out_names(
    started: Calls, equipoise: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed = calls()
    monkeypatch.setattr(output, "remove_run", removed)
    equipoise("run", "--quiet", "--out", "o")
    equipoise("run", "--quiet", "--overwrite")
    assert removed == [] and len(started) == 2
    equipoise("run", "--quiet", "--overwrite", "--out", "o")
    assert removed == [((Path("o"),), {})]


def test_resume_hands_on_all_that_it_is_told(
    started: Calls, equipoise: Terminal, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "run", rounds=1)
    answer = equipoise(
        "resume",
        run,
        "--from-round",
        3,
        "--allow-import",
        "mine",
        "--cluster",
        "h:1",
        "--trust-network",
        "--quiet",
    )
    ((folder, _), named), *_ = started
    assert folder == run and answer.out == "plain\nsummary finished\n"
    assert named == {
        "from_round": 3,
        "allow_imports": ["mine"],
        "cluster": "h:1",
        "trust_network": True,
    }


# compare


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Calls:
    made = calls(SimpleNamespace(failures=[], refusals=[]))
    monkeypatch.setattr("equipoise.comparison.compare", made)
    monkeypatch.setattr(comparison_output, "show", calls())
    return made


NOTHING_TYPED = {
    "methods": ["fedavg"],
    "seeds": [],
    "partitions": [],
    "grid": {},
    "baseline": None,
    "level": None,
    "measure": None,
    "measures": [],
    "target": None,
    "models": [],
    "sweep": {},
    "baselines": None,
}


def test_compare_without_words_is_fedavg_beside_training_alone(
    planned: Calls, equipoise: Terminal
) -> None:
    assert equipoise("compare").code == 0
    (given,), named = planned[0]
    assert given == {} and named.pop("progress") is not None
    where = {"cluster": None, "trust_network": False}
    assert named == {**NOTHING_TYPED, "out": None, "jobs": None, "allow_imports": [], **where}


def test_words_of_compare_are_settings_and_lists(planned: Calls, equipoise: Terminal) -> None:
    flags = {
        "--data": "digits",
        "--clients": 5,
        "--label": "ill",
        "--schema": "s",
        "--model": "cnn",
        "--rounds": 7,
        "--fraction": 0.5,
        "--methods": "moon, fedprox",
        "--seeds": "2-3",
        "--grid": "method.mu=0.5,1",
        "--baseline": "moon",
        "--level": 0.5,
        "--measure": "worst",
        "--measures": "best",
        "--target": 0.75,
        "--out": "o",
        "--jobs": 2,
        "--allow-import": "mine",
        "--set": "training.lr=0.25",
    }
    answer = equipoise(
        "compare",
        *[word for pair in flags.items() for word in pair],
        "--partition",
        "iid",
        "--partition",
        "pow",
        "--quiet",
    )
    assert (answer.code, answer.err) == (0, "")
    (given,), named = planned[0]
    assert given == {
        "data": {"name": "digits", "clients": 5, "label": "ill", "schema": "s"},
        "model": "cnn",
        "rounds": 7,
        "participation": {"fraction": 0.5},
        "training": {"lr": 0.25},
    }
    del named["progress"]
    assert named == {
        "methods": ["moon", "fedprox"],
        "seeds": [2, 3],
        "partitions": ["iid", "pow"],
        "grid": {"method.mu": [0.5, 1]},
        "baseline": "moon",
        "level": 0.5,
        "measure": "worst",
        "measures": ["best"],
        "target": "0.75",
        "models": [],
        "sweep": {},
        "baselines": None,
        "out": Path("o"),
        "jobs": 2,
        "allow_imports": ["mine"],
        "cluster": None,
        "trust_network": False,
    }


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        ("methods: [moon]", [], []),
        ("method: moon", [], []),
        ("rounds: 2", [], ["fedavg"]),
        ("methods: [moon]", ["--methods", "fedprox"], ["fedprox"]),
        ("methods: [moon]", ["--finish", "poise"], ["moon", {"name": "moon", "finish": "poise"}]),
        (
            "method: {name: moon, mu: 2}",
            ["--finish", "poise"],
            [{"name": "moon", "mu": 2}, {"name": "moon", "mu": 2, "finish": "poise"}],
        ),
        ("rounds: 2", ["--finish", "poise"], ["fedavg", {"name": "fedavg", "finish": "poise"}]),
    ],
)
def test_methods_of_the_file_stand_unless_others_are_typed(
    text: str,
    words: list[str],
    expected: list[Any],
    planned: Calls,
    equipoise: Terminal,
    tmp_path: Path,
) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert equipoise("compare", tmp_path / "c.yaml", *words).code == 0
    assert planned[0][1]["methods"] == expected


def test_a_single_seed_is_asked_about_unless_quiet(planned: Calls, equipoise: Terminal) -> None:
    assert "did you mean 1-5?" in equipoise("compare", "--seeds", "5").err
    assert (
        equipoise("compare", "--seeds", "5", "--quiet").err == "" and equipoise("compare").err == ""
    )


def carried_out(output_format: str = "terminal") -> None:
    execution = {"out": Path("o"), "jobs": 2, "allow_imports": ["mine"], "cluster": None}
    compare.run_and_print(
        FromFile({"rounds": 3}), {"methods": ["fedavg"]}, execution, True, output_format
    )


def test_a_comparison_is_started_shown_and_ends_with_1_after_failures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = SimpleNamespace(failures=[], refusals=[])
    begun, shown = calls(result), calls()
    monkeypatch.setattr("equipoise.comparison.compare", begun)
    monkeypatch.setattr(comparison_output, "show", shown)
    for name in ("markdown", "latex", "csv_text", "json_text"):
        monkeypatch.setattr(
            f"equipoise.comparison.formats.{name}",
            lambda given, name=name, **more: f"<{name}>" * (given is result),
        )
    carried_out()
    (given, named), *_ = begun
    assert (
        given == ({"rounds": 3},) and shown == [((result,), {})] and capsys.readouterr().out == ""
    )
    assert {key: value for key, value in named.items() if key != "progress"} == {
        "methods": ["fedavg"],
        "out": Path("o"),
        "jobs": 2,
        "allow_imports": ["mine"],
        "cluster": None,
    }
    for kind, text in (
        ("markdown", "<markdown>"),
        ("latex", "<latex>"),
        ("csv", "<csv_text>"),
        ("json", "<json_text>"),
    ):
        carried_out(kind)
        assert capsys.readouterr().out == text
    assert len(shown) == 1
    result.failures = ["one"]
    with pytest.raises(typer.Exit) as end:
        carried_out()
    assert end.value.exit_code == 1 and len(shown) == 2

    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.comparison.compare", interrupted)
    with pytest.raises(typer.Exit) as end:
        carried_out()
    assert (
        end.value.exit_code == 130
        and "the same command continues from there" in capsys.readouterr().err
    )


def test_a_dry_comparison_lists_its_runs_and_starts_none(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--data", "digits", "--methods", "fedavg", "--seeds", "1,2", "--rounds", "3")
    printed = equipoise("compare", *words, "--dry-run").out
    for name in ("standalone-s1", "standalone-s2", "fedavg-s1", "fedavg-s2"):
        assert name in printed
    assert not list(tmp_path.rglob("run.db"))


# audit, report, show, table, predict, watch


def test_words_of_an_audit_are_settings_of_data(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    found = audits.findings(2)
    looked = calls(found)
    monkeypatch.setattr("equipoise.auditing.audit", looked)
    (tmp_path / "x.yaml").write_text(
        "data: {name: digits, clients: 7}\nrounds: 3\nmethod: fedprox\nseed: 2\nparticipation: "
        "{floor: 2}\n"
    )
    flags = {
        "--data": "mnist",
        "--partition": "pow",
        "--clients": 5,
        "--label": "ill",
        "--seed": 9,
        "--workers": 0,
        "--dimensions": 4,
        "--set": "data.samples=50",
    }
    printed = equipoise("audit", *[word for pair in flags.items() for word in pair], "--json")
    (wanted,), named = looked[0]
    assert json.loads(printed.out)["verdict"]["text"] == audits.SAID and named["dimensions"] == 4
    assert (
        wanted.data.name,
        wanted.data.partition,
        wanted.data.clients,
        wanted.data.label,
        wanted.data.samples,
    ) == (
        "mnist",
        "pow",
        5,
        "ill",
        50,
    )
    assert (wanted.seed, wanted.workers) == (9, 0)
    assert audits.SAID in equipoise("audit", tmp_path / "x.yaml", "--seed", 3).out
    (wanted,), named = looked[1]
    assert (
        wanted.data.clients,
        wanted.seed,
        wanted.rounds,
        wanted.method,
        wanted.participation.floor,
    ) == (
        7,
        3,
        eq.Experiment().rounds,
        {"name": "fedavg"},
        2,
    )
    assert named["dimensions"] == 10


def test_the_audit_of_a_run_is_kept_with_it_unless_something_was_changed(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    looked, saved = calls(audits.findings(2)), calls()
    monkeypatch.setattr("equipoise.auditing.audit", looked)
    monkeypatch.setattr("equipoise.cli.audit.save", saved)
    run = made_up_run(tmp_path / "run", rounds=1, seed=5)
    for words in (["--seed", "6"], ["--set", "seed=6"]):
        equipoise("audit", run, *words)
        assert not (run / "audit.json").exists() and looked[-1][0][0].seed == 6
    equipoise("audit", run)
    assert (run / "audit.json").exists() and looked[-1][0][0].seed == 5 and saved == []
    assert (
        f"audit and pictures: {tmp_path / 'o'}"
        in equipoise("audit", run, "--out", tmp_path / "o").out
    )
    assert saved == [((looked.answer, tmp_path / "o", None), {})]
    assert (
        "audit and pictures" not in equipoise("audit", run, "--out", tmp_path / "o", "--json").out
        and len(saved) == 2
    )


def test_a_report_is_made_of_what_is_named(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    made = calls([Path("a.html"), Path("b.png")])
    monkeypatch.setattr("equipoise.report.report", made)
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    assert equipoise("report", one).out == "written: a.html, b.png\n"
    assert made[0][0] == ([one], one / "report.html", None, [], [], {})
    audits.findings(2).save(one / "audit.json")
    equipoise("report", one, "--out", "x.html", "--against", "alone", "--png", "--figure", "plane")
    assert made[1][0][:5] == ([one], Path("x.html"), Path("alone"), ["png"], ["plane"])
    assert list(made[1][0][5]) == ["audit-labels", "audit-sizes", "audit-map", "audit-kl"]
    equipoise("report", one, other, "--pdf", "--png")
    assert made[2][0] == ([one, other], one / "report.html", None, ["png", "pdf"], [], {}), (
        "an audit is of one run"
    )


def test_show_prints_a_profile_where_asked(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    run = made_up_run(tmp_path / "run", rounds=1)
    made_up_run(tmp_path / "standalone", "standalone", rounds=1, level=0.2)
    other = made_up_run(tmp_path / "apart" / "alone", "standalone", rounds=1)
    assert (
        "ms per round" not in equipoise("show", run).out
        and "ms per round" in equipoise("show", run, "--profile").out
    )
    assert f"({tmp_path / 'standalone'})" in equipoise("show", run).out
    assert f"against training alone ({other})" in equipoise("show", run, "--against", other).out


def test_predictions_are_csv_and_their_number_is_told_where_they_go_to_a_file(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    made = calls((["sample", "p(\x1b)"], [[0, "a\x1b", 0.5], [1, "b", 0.25]]))
    monkeypatch.setattr("equipoise.runs.export.predictions", made)
    run = made_up_run(tmp_path / "run", rounds=1)
    printed = equipoise(
        "predict", run, "new.csv", "--model", "m", "--client", "c", "--allow-import", "mine"
    )
    assert (
        printed.out.splitlines() == ["sample,p(\\x1b)", "0,a\\x1b,0.5", "1,b,0.25"]
        and printed.err == ""
    )
    assert made[0][0][1:5] == (Path("new.csv"), "m", "c", ["mine"])
    saved = equipoise("predict", run, "new.csv", "--out", tmp_path / "p.csv")
    assert (saved.out, saved.err) == ("", f"2 predictions: {tmp_path / 'p.csv'}\n")
    assert (tmp_path / "p.csv").read_text().splitlines() == printed.out.splitlines() and made[1][0][
        2:5
    ] == (None, None, [])
    exported = calls((Path("m.safetensors"), Path("m.md")))
    monkeypatch.setattr("equipoise.runs.export.export", exported)
    assert (
        equipoise("export", run, "--model", "m", "--client", "c").out
        == "model: m.safetensors\ncard:  m.md\n"
    )
    assert exported[0][0][1:] == ("m", "c", None) and exported[0][1] == {"allow_imports": []}


def test_a_folder_is_watched_until_it_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal, tmp_path: Path
) -> None:
    class Serving:
        address = "http://127.0.0.1:7/x"

        def __init__(self, *words: Any) -> None:
            assert words == (tmp_path, 7)

        def __enter__(self) -> Serving:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def serve_forever(self, **_: Any) -> None:
            raise KeyboardInterrupt

    monkeypatch.setattr("equipoise.watch.serving.WatchServer", Serving)
    assert equipoise("watch", tmp_path, "--port", 7).out.splitlines() == [
        "open http://127.0.0.1:7/x in a browser on this machine; Ctrl-C stops",
        "viewer stopped; the runs continue",
    ]
    with pytest.raises(
        RunError, match="no folder .*; name the folder of a run, or a folder of runs"
    ):
        watch.watch(tmp_path / "nothing")


# methods, models


def test_methods_are_grouped_by_family_and_cells_are_words(equipoise: Terminal) -> None:
    assert [_cell(value) for value in (["a", "b"], None, 2020, [])] == ["a, b", "", "2020", ""]
    lines = equipoise("methods").out.splitlines()
    assert lines[0].split() == [
        "family,",
        "method",
        "year",
        "needs",
        "exchanges",
        "fairness",
        "passes",
    ]
    families = [
        line.strip()
        for line in lines[1:]
        if line and not line.startswith(" ") and len(line.split()) == 1
    ]
    assert families == list(dict.fromkeys(entry["family"] for entry in methods.listed()))
    assert sum(line.startswith("  ") for line in lines) == len(methods.names())


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["a", "b"], "expected one NAME"), (["fedavg", "--needs", "sgd"], "expected one NAME"), (["fedavg", "--family", "drift"], "expected one NAME"),
     (["--check"], "expected --check with the NAME"), (["fedavg", "--check", "--json"], "expected --check with the NAME")],
)  # fmt: skip
def test_words_of_methods_that_do_not_fit(
    words: list[str], sentence: str, equipoise: Terminal
) -> None:
    answer = equipoise("methods", *words)
    assert answer.code == 2 and sentence in answer.err


@pytest.mark.parametrize(
    ("outcomes", "code"),
    [(["passed"], 0), (["passed", "failed"], 1), (["skipped"], 1), (["passed", "skipped"], 0)],
)
def test_a_check_fails_if_one_did_or_none_could_be_made(
    outcomes: list[str], code: int, monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    made = calls([SimpleNamespace(outcome=outcome) for outcome in outcomes])
    monkeypatch.setattr("equipoise.testing.check_method", made)
    assert _check("fedavg") == code and made[0][1]["raise_errors"] is False
    counted = [outcomes.count(one) for one in ("passed", "failed", "skipped")]
    printed = equipoise("methods", "fedavg", "--check").out
    assert "on purpose" in " ".join(printed.split())
    last = printed.splitlines()[-1]
    assert last == "fedavg: {} checks passed, {} failed, {} skipped".format(*counted)


def test_a_model_is_shown_with_its_options(equipoise: Terminal) -> None:
    shown = equipoise("models", "mlp").out
    assert "--set model={name: mlp, hidden: [" in shown and "cnn" not in shown
    listed = equipoise("models").out
    assert "images of at least 16x16 pixels take cnn" in listed
    names = [found["name"] for found in json.loads(equipoise("models", "--json").out)]
    assert {"mlp", "cnn"} <= set(names)
    assert len(json.loads(equipoise("models", "cnn", "--json").out)) == 1
    assert "did you mean 'mlp'" in equipoise("models", "mpl").err


# cluster


def node(head: bool, cluster: str = "127.0.0.1:6379") -> SimpleNamespace:
    return SimpleNamespace(head=head, cluster=cluster, token="/t")


def test_a_node_is_started_and_says_how_others_join(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    made = calls(node(True))
    monkeypatch.setattr("equipoise.transports.ray.nodes.start", made)
    lines = equipoise("cluster", "start", "--head").out.splitlines()
    assert made[0][0] == (None, None, 6379, None, None, None)
    assert lines[0] == "this machine is the head of the cluster at 127.0.0.1:6379" and lines[
        1
    ].startswith("only this machine reaches it")
    assert lines[3:] == [
        "  equipoise cluster start --join 127.0.0.1:6379 --token /t",
        "then on any of them:",
        "  equipoise run EXPERIMENT.yaml --cluster auto",
    ]
    made.answer = node(True, "10.0.0.5:7777")
    lines = equipoise(
        "cluster",
        "start",
        "--head",
        "--bind",
        "10.0.0.5",
        "--port",
        7777,
        "--cores",
        3,
        "--store",
        200,
    ).out.splitlines()
    assert (
        made[1][0] == (None, "10.0.0.5", 7777, None, 3, 200)
        and len(lines) == 5
        and "only this machine" not in lines[1]
    )
    made.answer = node(False, "10.0.0.5:7777")
    lines = equipoise(
        "cluster", "start", "--join", "10.0.0.5:7777", "--token", "f"
    ).out.splitlines()
    assert made[2][0] == ("10.0.0.5:7777", None, 6379, Path("f"), None, None)
    assert (
        lines[0] == "this machine is a node of the cluster at 10.0.0.5:7777"
        and lines[1] == "then on any of them:"
    )
    for words in ([], ["--head", "--join", "h:1"]):
        assert (
            "expected either --head or --join HOST:PORT"
            in equipoise("cluster", "start", *words).err
        )
    assert len(made) == 3


def test_the_nodes_of_a_cluster_are_listed(
    monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    found = {
        "ray": "2.9",
        "python": "3.11",
        "nodes": [
            {
                "address": "h:1",
                "head": True,
                "resources": {"CPU": 4.0, "memory": 3 * 2**20, "object_store_memory": 2**21},
                "labels": {"equipoise": "0.2_x", "torch": "2.5"},
            },
            {"address": "h:2", "head": False, "resources": {}, "labels": {}},
        ],
    }
    looked = calls(found)
    monkeypatch.setattr("equipoise.transports.ray.probe.check_installed", lambda: None)
    monkeypatch.setattr("equipoise.transports.ray.probe.look", looked)
    monkeypatch.setattr(
        "equipoise.transports.ray.connecting.address_of", lambda given: f"{given}:9"
    )
    monkeypatch.setattr(
        "equipoise.transports.ray.connecting.token_for", lambda cluster: f"token of {cluster}"
    )
    lines = equipoise("cluster", "status", "h", "--trust-network").out.splitlines()
    assert (
        looked == [(("h:9", "token of h:9", True), {})]
        and lines[0] == "cluster at h:9, Ray 2.9, Python 3.11"
    )
    assert lines[2].split() == ["h:1", "(head)", "4", "3", "MB", "2", "MB", "0.2+x", "2.5"]
    assert lines[3].split() == ["h:2", "0", "0", "MB", "0", "MB", "unknown", "unknown"]


@pytest.mark.parametrize(
    ("count", "said"),
    [(0, "no node was started here"), (1, "1 node stopped"), (2, "2 nodes stopped")],
)
def test_nodes_are_stopped_and_counted(
    count: int, said: str, monkeypatch: pytest.MonkeyPatch, equipoise: Terminal
) -> None:
    monkeypatch.setattr("equipoise.transports.ray.nodes.stop", lambda: count)
    assert equipoise("cluster", "stop").out == f"{said}\n"


# data


def understanding(**more: Any) -> DataReport:
    usual: dict[str, Any] = {
        "name": "mine",
        "task": "classification",
        "label": "ill",
        "guessed": False,
        "columns": (),
        "files": {},
        "warnings": (),
        "schema": Schema(),
        "sites": (SiteReport("a", 10, 2, {"no": 4, "yes": 6}), SiteReport("b", 5, None, {"no": 5})),
    }
    return DataReport(**(usual | more))


def shown(found: DataReport, **more: Any) -> list[str]:
    stream = io.StringIO()
    data_output.show_report(found, stream, **more)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def test_how_data_are_understood_is_told_site_by_site() -> None:
    assert shown(understanding()) == [
        "mine: 2 sites, 15 rows, classification, label ill",
        "site  rows  test rows  no  yes",
        "a     10    2          4   6",
        "b     5                5   0",
    ]
    sites = (SiteReport("a", 10, 2, {}, {"mean": 1234.56, "lowest": -1.0}),)
    columns = (ColumnReport("age", "number", 3, "one input"),)
    files = {"a.csv": "commas", "b.csv": "tabs", "c.csv": "commas"}
    lines = shown(
        understanding(
            task="regression",
            label="dose",
            guessed=True,
            sites=sites,
            columns=columns,
            files=files,
            warnings=("look [here]",),
        )
    )
    assert lines == [
        "mine: 1 site, 10 rows, regression, label dose (guessed from its name; --label chooses "
        "another)",
        "site  rows  test rows  mean  lowest  highest",
        "a     10    2          1235  -1",
        "column  kind    gaps  becomes",
        "age     number  3     one input",
        "the target is standardised in training; errors are in its own unit",
        "read as commas: a.csv, c.csv",
        "read as tabs: b.csv",
        "warning: look [here]",
    ]
    assert (
        shown(understanding(label=None, sites=(), schema=Schema(shape=(3, 8, 9))))[0]
        == "mine: 0 sites, 0 rows, classification, images of 3x8x9"
    )


@pytest.mark.parametrize(("count", "classes", "more"), [(2, 12, False), (3, 13, True)])
def test_many_sites_and_classes_are_counted(count: int, classes: int, more: bool) -> None:
    names = tuple(f"k{c:02}" for c in range(classes))
    sites = tuple(SiteReport(f"s{k}", 1, None, {"k00": 1}) for k in range(count))
    lines = shown(understanding(sites=sites, schema=Schema(classes=names)), most=2)
    assert lines[1].split()[4:] == list(names[:12]) and [
        line.split()[0] for line in lines[2:4]
    ] == ["s0", "s1"]
    assert ("... and 1 more" in lines) == more and ("... and 1 more classes" in lines) == more
    assert (
        lines[1:2]
        == shown(
            understanding(sites=(SiteReport("s0", 1, None, dict.fromkeys(reversed(names), 0)),))
        )[1:2]
    ), "sorted where there is no schema"
    assert len(
        shown(
            understanding(sites=sites * 30 + sites[:1] * (61 - 30 * count) if count == 2 else sites)
        )
    ) == (63 if count == 2 else 5)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"data": {"name": "mnist"}}, "1x28x28"), ({"data": {"name": "mnist", "image_size": 16}}, "1x16x16"), ({"data": {"name": "mnist", "image_size": 15}}, ""),
        ({"data": {"name": "digits"}}, ""), ({"data": {"name": "digit_domains"}}, "3x32x32"), ({"data": {"name": "mnist+usps"}}, "3x32x32"),
        ({"data": {"name": "mnist"}, "model": "cnn"}, ""), ({"data": {"name": "mnist"}, "models": {"model": "mlp"}}, ""), ({"data": {"name": "uci_heart_disease"}}, ""),
    ],
)  # fmt: skip
def test_a_model_that_was_chosen_for_images_is_told_before_training(
    settings: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data.before_training(eq.Experiment(**settings))
    out, err = capsys.readouterr()
    assert out == "" and (
        err.startswith(f"model: cnn, the default for images of {said};") if said else err == ""
    )


@pytest.mark.parametrize(
    ("here", "fetchable", "status"),
    [(True, False, "yes"), (False, True, "to fetch"), (False, False, "import-only")],
)
def test_whether_a_data_set_is_at_hand(here: bool, fetchable: bool, status: str) -> None:
    assert data._status(here, fetchable) == status


def test_what_is_known_of_built_in_data_sets(
    equipoise: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("EQUIPOISE_DATA", str(tmp_path))
    listed = {row["name"]: row for row in json.loads(equipoise("data", "list", "--json").out)}
    assert (
        list(listed) == sets.names()
        and len({row["title"] for row in listed.values()}) >= len(listed) - 1
    )
    assert (
        listed["digits"]["shape"] == [1, 8, 8] and listed["digit_domains"]["status"] == "to fetch"
    )
    patients = {
        name: row for name, row in listed.items() if row["title"].startswith("synthetic patients")
    }
    assert sorted(row["counts"] for row in patients.values()) == ["14,313", "238,576"] and all(
        row["shape"] == [51, 4] for row in patients.values()
    )
    assert (
        next(name for name, row in patients.items() if row["counts"] == "14,313")
        == sorted(patients, key=len)[-1]
    )
    lines = equipoise("data", "list").out.splitlines()
    assert (
        lines[0].split() == ["name", "what", "samples", "licence", "here"]
        and str(tmp_path) in lines[-1]
    )
    assert [line.split()[0] for line in lines[1:-1] if line[:2].strip()] == sets.names()
    assert "shape:        1, 8, 8" in equipoise("data", "show", "digits").out.splitlines()
    assert "name:         digits" in equipoise("data", "show", "digits").out.splitlines()


def test_patients_are_written_to_a_new_folder_only(
    equipoise: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    made = calls("there")
    monkeypatch.setattr("equipoise.data.patients.synthetic.write_patients", made)
    assert equipoise(
        "data", "synthesise", tmp_path, "--seed", 3, "--share", 0.5, "--per-site"
    ).out.startswith("there: ")
    assert equipoise("data", "synthesise", tmp_path / "new").code == 0
    assert made == [((tmp_path, 3, 0.5, True), {}), ((tmp_path / "new", 2025, 0.01, False), {})]
    (tmp_path / "file").touch()
    assert (
        "exists and is not empty; choose another folder"
        in equipoise("data", "synthesise", tmp_path).err
        and len(made) == 2
    )


def test_data_sets_are_fetched_one_after_the_other_with_a_bar_per_file(
    equipoise: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(entry: Any, progress: Any) -> str:
        for done in (1_000, 3_000):
            progress("file.gz", done, 3_000)
        return f"prepared {entry.name}"

    monkeypatch.setattr(sets, "fetch", fetch)
    out = equipoise("data", "fetch", "mnist", "usps").out
    assert (
        "mnist: prepared mnist" in out
        and "usps: prepared usps" in out
        and out.count("file.gz") == 2
        and "3.0/3.0 kB" in out
    )
