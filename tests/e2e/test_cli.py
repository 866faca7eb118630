"""The commands as a user types them: what they print, where, and with which exit code."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.torch import load_file

import equipoise as eq
from equipoise import methods
from equipoise.cli import main
from equipoise.data import federate
from equipoise.testing import CHECKS, NETWORKS
from tests.helpers.runs import folder_of, sites
from tests.helpers.terminal import QUICK, Terminal, in_a_process


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with four sites and two runs over them; what the second one printed is kept."""
    folder = tmp_path_factory.mktemp("place")
    folder_of(folder / "sites", sites())
    words = ("run", "--data", "sites", *QUICK)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as end:
        patch.chdir(folder)
        patch.setattr(
            sys, "argv", ["equipoise", *words, "--method", "standalone", "--out", "runs/standalone"]
        )
        main()
    assert not end.value.code
    answer = in_a_process(*words, "--method", "fedavg", "--out", "runs/fedavg", folder=folder)
    assert answer.code == 0, answer.err
    (folder / "out").write_text(answer.out)
    (folder / "err").write_text(answer.err)
    return folder


def test_a_run_shows_progress_a_table_of_gains_and_where_it_is(place: Path) -> None:
    out, err = (place / "out").read_text(), (place / "err").read_text()
    assert err.startswith("sites: 4 sites, 64 rows")  # how the data were understood comes first
    assert [line.partition(":")[0] for line in err.splitlines()][-2:] == ["round 1", "round 2"]
    assert "fedavg" in out and "4 clients" in out and "finished, round 2 of 2" in out
    assert "against training alone (runs/standalone)" in out and "clients gain" in out
    assert all(client in out for client in ("ada", "bo", "cy", "di"))
    assert "saved in runs/fedavg; look again with: equipoise show runs/fedavg" in out


def test_a_mistake_ends_in_one_sentence(equipoise: Terminal, tmp_path: Path) -> None:
    answer = equipoise("run", "--method", "fedprx", "--out", tmp_path / "x")
    assert answer.code == 2 and answer.out == "" and len(answer.err.splitlines()) == 1
    assert answer.err.startswith("error: method: unknown method 'fedprx'; did you mean 'fedprox'?")


@pytest.mark.thorough
def test_a_method_of_the_users_is_named_by_its_path_and_its_error_shows_the_line(
    place: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "import equipoise as eq\n\n\nclass Broken(eq.Method):\n    def client(self, client, "
        "down):\n        raise ZeroDivisionError('own mistake')\n"
    )
    answer = in_a_process(
        "run",
        "--data",
        place / "sites",
        "--method",
        "mine:Broken",
        *QUICK,
        "--out",
        tmp_path / "x",
        folder=tmp_path,
        path=tmp_path,
    )
    assert answer.code == 1
    assert "mine.py" in answer.err and "own mistake" in answer.err
    assert "client 'ada', round 1, step 'client'" in answer.err


def test_help_needs_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; sys.argv = ['equipoise', 'run', '--help']\ntry:\n    from equipoise.cli "
        "import main; main()\nexcept SystemExit:\n    pass\nassert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(eq.__file__).parent.parent)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "--dry-run" in done.stdout


def test_a_dry_run_prints_the_resolved_plan_and_leaves_nothing(
    equipoise: Terminal, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "experiment.yaml").write_text(
        f"data: {place / 'sites'}\nmethod: {{name: fedprox, mu: 0.3}}\nrounds: 9\ntraining: {{lr: "
        f"0.2}}\n"
    )
    out = tmp_path / "run"
    answer = equipoise(
        "run",
        tmp_path / "experiment.yaml",
        "--rounds",
        5,
        "--set",
        "training.lr=1e-2",
        "--set",
        "method.mu=0.7",
        "--dry-run",
        "--out",
        out,
    )
    text, _, plan = answer.out.partition("plan: ")
    found = yaml.safe_load(text)
    assert answer.code == 0 and not out.exists()
    assert (found["rounds"], found["training"]["lr"], found["method"]) == (
        5,
        0.01,
        {"name": "fedprox", "mu": 0.7},
    )
    wanted = eq.Experiment(**found)
    sizes = [len(rows) for rows in federate(wanted.data, wanted.seed).train]
    assert (
        f"4 clients with {min(sizes)} to {max(sizes)} training samples ({sum(sizes)} in all), 4 in "
        "each of 5 rounds" in " ".join(plan.split())
    )
    assert "parameters" in plan and "measured: accuracy, loss; main metric: accuracy" in " ".join(
        plan.split()
    )


def test_another_method_on_the_command_line_drops_the_files_parameters(
    equipoise: Terminal, place: Path, tmp_path: Path
) -> None:
    (tmp_path / "e.yaml").write_text(
        f"data: {place / 'sites'}\nmethod: {{name: fedprox, mu: 0.3}}\n"
    )
    answer = equipoise(
        "run", tmp_path / "e.yaml", "--method", "fedavgm", "--set", "method.beta=0.5", "--dry-run"
    )
    assert yaml.safe_load(answer.out.partition("plan: ")[0])["method"] == {
        "name": "fedavgm",
        "beta": 0.5,
    }


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--set", "training.lr"],
            "--set: expected KEY=VALUE such as training.lr=0.01, got 'training.lr'",
        ),
        (["--set", "training.rate=1"], "training.rate: unknown key"),
        (["--set", "method.mu=-1", "--method", "fedprox"], "method.mu: "),
        (["--set", "rounds.x=1"], "rounds.x: rounds is 2, which has no parts"),
        (["--set", "model=mpl"], "unknown model 'mpl'; did you mean 'mlp'?"),
        (["--partition", "dirichle:1"], "dirichle"),
        (["--data", "digitz"], "digitz"),
        (["--method", "standalone", "--weights", "fedavg"], "its round never weighs replies"),
        (["--method", "nowhere:Thing"], "cannot import 'nowhere'"),
        (["--method", "scaffold", "--set", "training.momentum=0.9"], "Scaffold needs plain sgd"),
        (["nothing.yaml"], "no experiment file nothing.yaml"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_written(
    equipoise: Terminal, place: Path, tmp_path: Path, words: list[str], sentence: str
) -> None:
    answer = equipoise("run", "--data", place / "sites", *QUICK, "--out", tmp_path / "run", *words)
    assert answer.code == 2 and answer.err.startswith("error: ") and sentence in answer.err
    assert not (tmp_path / "run").exists()


def test_a_run_is_replaced_only_when_asked_and_nothing_else_ever(
    equipoise: Terminal, place: Path, tmp_path: Path
) -> None:
    words = ("run", "--data", place / "sites", *QUICK, "--quiet", "--out", tmp_path / "run")
    first = equipoise(*words)
    assert (first.code, first.err) == (0, "")
    again = equipoise(*words)
    assert again.code == 2 and "holds a run already" in again.err
    assert equipoise(*words, "--overwrite").code == 0
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("")
    refused = equipoise(*words[:-1], tmp_path / "precious", "--overwrite")
    assert (
        refused.code == 2
        and "exists but is not a run" in refused.err
        and (tmp_path / "precious" / "file").exists()
    )


def test_methods_are_listed_and_shown(equipoise: Terminal) -> None:
    table = equipoise("methods").out
    assert all(name in table for name in methods.names())
    listed = json.loads(equipoise("methods", "--json").out)
    assert sorted(entry["name"] for entry in listed) == methods.names() and all(
        entry["summary"] for entry in listed
    )
    narrow = equipoise("methods", "--family", "drift", "--needs", "sgd")
    assert (
        narrow.code == 0
        and "scaffold" in narrow.out
        and "fedprox" not in narrow.out
        and "E·T" in narrow.out
    )
    assert json.loads(equipoise("methods", "--needs", "sgd", "--json").out)[0]["needs"] == ["sgd"]
    shown = equipoise("methods", "fedprox")
    assert (
        shown.code == 0
        and "Paper: Li et al." in shown.out
        and "float >= 0" in shown.out
        and "0.01" in shown.out
    )
    assert (
        "family: drift (local training" in shown.out
        and "needs: nothing" in shown.out
        and "passes per round: E·T (" in shown.out
    )
    told = json.loads(equipoise("methods", "fedprox", "--json").out)
    for what in ("fairness", "exchanges per round", "passes per round"):
        assert f"\n{what}: {told[what.partition(' per ')[0]]}" in shown.out
    assert (
        f"\nfamily: {told['family']} (" in shown.out
        and "\nneeds: " in shown.out
        and f"Paper: {told['paper']}" in shown.out
    )
    assert equipoise("methods", "show", "fedprox").out == shown.out
    assert told["parameters"][-1]["name"] == "mu"
    for words, sentence in (
        (("fedprx",), "did you mean 'fedprox'?"),
        (("--family", "drft"), "did you mean 'drift'?"),
        (("fedavg", "fedprox"), "expected one NAME"),
        (("fedavg", "--family", "drift"), "expected one NAME"),
    ):
        refused = equipoise("methods", *words)
        assert refused.code == 2 and sentence in refused.err


def test_show_says_how_a_run_ended_and_who_gained(equipoise: Terminal, place: Path) -> None:
    run, alone = eq.Run(place / "runs" / "fedavg"), eq.Run(place / "runs" / "standalone")
    found = json.loads(equipoise("show", run.folder, "--json").out)
    assert (found["round"], found["status"], found["metric"], found["model"]) == (
        2,
        "finished",
        "accuracy",
        "global",
    )
    values, reference = run.final(), alone.final()
    assert found["average"] == pytest.approx(np.mean(list(values.values())))
    assert (found["worst"], found["best"]) == (min(values.values()), max(values.values()))
    for client, row in found["per client"].items():
        assert (
            row["gain"] == pytest.approx(values[client] - reference[client])
            and row["alone"] == reference[client]
        )
    gains = [values[client] - reference[client] for client in values]
    assert (found["gained"], found["lost"]) == (
        sum(gain > 0 for gain in gains),
        sum(gain < 0 for gain in gains),
    )
    text = equipoise("show", run.folder, "--against", alone.folder, "--profile").out
    assert f"average {100 * found['average']:.1f}" in text and "ms per round" in text
    assert (
        "gain" not in json.loads(equipoise("show", alone.folder, "--json").out)["per client"]["ada"]
    )


@pytest.mark.thorough
def test_show_takes_any_metric_and_names_clients_that_have_none(
    place: Path, tmp_path: Path, equipoise: Terminal
) -> None:
    folder_of(tmp_path / "sites", sites({"ada": 40, "bo": 30, "cy": 40}, {"bo": [1]}))
    words = ("run", "--data", "sites", *QUICK, "--set", "evaluation.metrics=[auroc, loss]")
    for method in ("standalone", "fedavg"):
        answer = in_a_process(
            *words, "--method", method, "--out", f"runs/{method}", folder=tmp_path
        )
        assert answer.code == 0 and "Warning" not in answer.err and "metrics/" not in answer.err
    assert [
        line.split(" ")[2:4] for line in answer.err.splitlines() if line.startswith("round")
    ] == [["global", "auroc"]] * 2
    run = eq.Run(tmp_path / "runs" / "fedavg")
    values, loss = run.final(), run.final("loss")
    assert values.keys() == {"ada", "cy"} and loss.keys() == {"ada", "bo", "cy"}
    assert (
        "auroc is undefined for client bo: its test data have one class; averages are over the "
        "other 2" in answer.out
    )
    assert (
        "the main metric is auroc, the first measured that is not the loss; evaluation.main names "
        "another" in answer.out
    )
    assert (
        "auroc in % of the global model" in answer.out
        and f"average {100 * sum(values.values()) / 2:.1f}" in answer.out
    )
    assert "average of other metrics: loss" in answer.out and "of 2 clients gain" in answer.out
    shown = equipoise("show", run.folder, "--metric", "loss").out
    assert (
        "loss of the global model" in shown
        and f"worst {max(loss.values()):.4f}, best {min(loss.values()):.4f}" in shown
    )
    found = json.loads(equipoise("show", run.folder, "--metric", "loss", "--json").out)
    alone = eq.Run(tmp_path / "runs" / "standalone").final("loss")
    assert {client: row["gain"] for client, row in found["per client"].items()} == {
        c: pytest.approx(alone[c] - loss[c]) for c in loss
    }
    assert found["metrics"]["auroc"]["average"] == pytest.approx(sum(values.values()) / 2)
    refused = equipoise("show", run.folder, "--metric", "acuracy")
    assert refused.code == 2 and "did not measure 'acuracy'; it has auroc, loss" in refused.err
    plan = equipoise(
        "run", "--data", tmp_path / "sites", *QUICK, "--set", "evaluation.main=f1", "--dry-run"
    ).out
    assert "measured: accuracy, loss, f1; main metric: f1" in plan


def test_show_of_what_is_no_run(equipoise: Terminal, tmp_path: Path) -> None:
    answer = equipoise("show", tmp_path)
    assert answer.code == 2 and "is not a run" in answer.err


def test_runs_of_other_data_are_not_compared(
    equipoise: Terminal, place: Path, tmp_path: Path
) -> None:
    folder_of(tmp_path / "others", sites(seed=5))
    assert (
        equipoise(
            "run",
            "--data",
            tmp_path / "others",
            "--method",
            "standalone",
            *QUICK,
            "--quiet",
            "--out",
            tmp_path / "other",
        ).code
        == 0
    )
    answer = equipoise("show", place / "runs" / "fedavg", "--against", tmp_path / "other")
    assert answer.code == 2 and "cannot be compared" in answer.err


def test_the_table_is_the_long_one(equipoise: Terminal, place: Path) -> None:
    run = eq.Run(place / "runs" / "fedavg")
    rows = list(csv.DictReader(io.StringIO(equipoise("table", run.folder).out)))
    assert list(rows[0]) == ["round", "client", "model", "phase", "split", "metric", "value"]
    assert [
        {**row, "round": int(row["round"]), "value": float(row["value"])} for row in rows
    ] == run.table()
    assert json.loads(
        equipoise("table", run.folder, "--phase", "final", "--json").out
    ) == run.table(phase="final")


def test_export_and_predict(equipoise: Terminal, place: Path, tmp_path: Path) -> None:
    run = place / "runs" / "standalone"
    refused = equipoise("export", run)
    assert refused.code == 2 and "belongs to a client; say which" in refused.err
    answer = equipoise("export", run, "--client", "bo", "--out", tmp_path / "bo.safetensors")
    assert (
        answer.code == 0
        and str(tmp_path / "bo.safetensors") in answer.out
        and str(tmp_path / "bo.md") in answer.out
    )
    assert set(load_file(tmp_path / "bo.safetensors")) == set(
        eq.Run(run).model("personal", client="bo").state_dict()
    )
    printed = equipoise("predict", run, place / "sites" / "bo.npz", "--client", "bo")
    rows = list(csv.reader(io.StringIO(printed.out)))
    assert rows[0][:2] == ["sample", "prediction"] and len(rows) == 1 + 13
    saved = equipoise(
        "predict", run, place / "sites" / "bo.npz", "--client", "bo", "--out", tmp_path / "p.csv"
    )
    assert saved.out == "" and list(csv.reader((tmp_path / "p.csv").open())) == rows
    missing = equipoise("predict", run, tmp_path / "nothing.csv", "--client", "bo")
    assert missing.code == 2 and "no file" in missing.err


def test_a_finished_run_is_not_resumed(equipoise: Terminal, place: Path) -> None:
    answer = equipoise("resume", place / "runs" / "fedavg")
    assert answer.code == 2 and "is finished: all 2 rounds are done" in answer.err


@pytest.mark.thorough
def test_methods_are_checked_by_name(equipoise: Terminal) -> None:
    # A method that passes is checked on the page about custom methods.
    answer = equipoise("methods", "tests.contract.test_broken:NeedsTwoSamples", "--check")
    assert answer.code == 1 and "failed one_sample (cnn): " in answer.out
    answer = equipoise("methods", "tests.contract.test_check_method:OnlyRegression", "--check")
    assert (
        answer.code == 1
        and f"0 checks passed, 0 failed, {len(CHECKS) * len(NETWORKS)} skipped" in answer.out
    )
    assert (
        equipoise("methods", "--check").code == 2
        and equipoise("methods", "fedavg", "--check", "--json").code == 2
    )


@pytest.mark.parametrize("name", ["fedsac", "pfedck", "fedmpr", "pa3fed"])
def test_the_page_of_a_method_says_that_it_is_a_reconstruction(
    equipoise: Terminal, name: str
) -> None:
    assert "(reconstruction)" in equipoise("methods", name).out.partition("\n")[0]
