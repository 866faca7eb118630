"""Which sites gain, in one command, and the measures next to accuracy for unequal classes."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

import equipoise as eq
from tests.helpers.plans import plan
from tests.helpers.terminal import Terminal

ROWS = {"boston": 320, "lyon": 240, "wien": 60}
SMALL = ("--rounds", "8", "--set", "model={name: mlp, hidden: [6]}", "--set", "training.lr=0.2")


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites in which one of ten, or so, is ill; the last has twelve test rows."""
    rng = np.random.default_rng(3)
    (tmp_path / "hospitals").mkdir()
    for site, count in ROWS.items():
        x = rng.normal(size=(count, 2))
        ill = x[:, 0] + 0.5 * rng.normal(size=count) > 1.2
        lines = [
            f"{a:.4f},{b:.4f},{'yes' if sick else 'no'}"
            for (a, b), sick in zip(x, ill, strict=True)
        ]
        (tmp_path / "hospitals" / f"{site}.csv").write_text(
            "\n".join(["age,pressure,disease", *lines]) + "\n"
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.thorough
def test_run_against_alone_is_a_comparison(hospitals: Path, equipoise: Terminal) -> None:
    words = ("--data", "hospitals", "--label", "disease", *SMALL)
    answer = equipoise(
        "run",
        *words,
        "--method",
        "fedprox",
        "--set",
        "method.mu=0.3",
        "--seed",
        "4",
        "--against-alone",
        "--out",
        "c",
    )
    assert answer.code == 0, answer.err
    assert (
        "who gains, who loses against training alone" in answer.out
        and "clients that lose" in answer.out
    )
    base = {
        "data": {"name": "hospitals", "label": "disease"},
        "rounds": 8,
        "model": {"name": "mlp", "hidden": [6]},
        "training": {"lr": 0.2},
    }
    cells = plan(base, [{"name": "fedprox", "mu": 0.3}], seeds=[4])
    assert not list(Path("c/runs").glob("*/log.txt")), "logs are of runs that failed"
    assert {cell.name for cell in cells} == {path.name for path in Path("c/runs").iterdir()}, (
        "as `compare` would have it"
    )
    result = json.loads(Path("c/comparison.json").read_text())
    alone, together = (
        {client: 100 * value for client, value in entry["clients"].items()}
        for entry in result["entries"]
    )
    printed = answer.out[answer.out.index("who gains, who loses") :].splitlines()
    for client in ROWS:
        change = together[client] - alone[client]
        row = next(line.split() for line in printed if line.startswith(client))
        assert row == [
            client,
            f"{alone[client]:.1f}",
            f"{change:+.1f}" if f"{change:.1f}" not in ("0.0", "-0.0") else row[2],
        ]
    assert {(entry["method"], entry["seed"]) for entry in result["entries"]} == {
        ("standalone", 4),
        ("fedprox", 4),
    }
    assert eq.Run(Path("c") / result["entries"][1]["run"]).config["method"]["mu"] == 0.3
    again = equipoise(
        "run",
        *words,
        "--method",
        "fedprox",
        "--set",
        "method.mu=0.3",
        "--seed",
        "4",
        "--against-alone",
        "--out",
        "c",
    )
    assert "0 runs to do, 2 already finished" in again.err, (
        "the same command completes what is missing"
    )
    shown = equipoise("show", "c")
    assert shown.code == 0 and "who gains, who loses" in shown.out and "majority class" in shown.out
    said = "clients with at least 30 test samples: auroc, auprc, balanced_accuracy"
    assert said in " ".join(Path("c/table.md").read_text().split())
    assert json.loads(equipoise("show", "c", "--json").out)["baseline"] == "fedprox"
    assert "balanced_accuracy in %" in equipoise("show", "c", "--metric", "balanced_accuracy").out
    assert "unknown metric of this comparison 'f2'" in equipoise("show", "c", "--metric", "f2").err
    assert equipoise("report", "c", "--out", "page.html").code == 0
    assert "Report card of every client" in Path("page.html").read_text()
    for option in ("--overwrite", "--profile"):
        assert f"{option} is for one run" in equipoise("run", *words, "--against-alone", option).err
    assert "plan: 2 runs" in equipoise("run", *words, "--against-alone", "--dry-run").out


def test_a_file_of_a_stranger_is_not_trusted_for_it(hospitals: Path, equipoise: Terminal) -> None:
    Path("stranger.py").write_text("raise SystemExit('imported')")
    Path("e.yaml").write_text(
        "method: {name: 'stranger:Method'}\ndata: {name: hospitals, label: disease}\n"
    )
    answer = equipoise("run", "e.yaml", "--against-alone", "--dry-run")
    assert answer.code == 2 and "--allow-import" in answer.err


@pytest.mark.thorough
def test_clinical_measures_stand_beside_accuracy(hospitals: Path, equipoise: Terminal) -> None:
    answer = equipoise(
        "run",
        "--data",
        "hospitals",
        "--label",
        "disease",
        *SMALL,
        "--workers",
        "0",
        "--quiet",
        "--out",
        "run",
    )
    assert answer.code == 0, answer.err
    for said in (
        "majority class",
        "classes are unequal",
        "AUROC",
        "AUPRC",
        "balanced accuracy",
        "sensitivity at 90 % specificity",
        "calibration error",
        "1 of 3 clients sent no counts",
    ):
        assert said in answer.out, said
    found = json.loads(equipoise("show", "run", "--json").out)
    assert set(found["clinical"]) == {"boston", "lyon"} and set(found["per client"]) == set(ROWS)
    assert all(row["majority"] > 0.7 for row in found["per client"].values())
    for one in found["clinical"]["boston"].values():
        assert bool(one["reason"]) == (one["low"] is None) == (one["high"] is None)
        assert one["reason"] or one["low"] <= one["value"] <= one["high"] <= 1
    assert equipoise("report", "run", "--out", "page.html", "--png", "--figure", "roc").code == 0
    page = Path("page.html").read_text()
    for said in (
        "ROC: yes against the other class, global model",
        "Calibration: yes",
        "sensitivity in %",
        "PPV in %",
        "1 of 3 clients sent no counts",
        "no single score left a client",
    ):
        assert said in page, said
    assert Path("page-roc.png").read_bytes()[:4] == b"\x89PNG"


def test_further_measures_are_columns_on_request_and_in_the_files_always(
    hospitals: Path, equipoise: Terminal
) -> None:
    words = (
        "compare",
        "--data",
        "hospitals",
        "--label",
        "disease",
        *SMALL,
        "--quiet",
        "--out",
        "c",
    )
    answer = equipoise(
        *words, "--measures", "best,p10_change,p90_change,best_round,d_cos,d_man", "--target", "0.7"
    )
    assert answer.code == 0, answer.err
    for title in (
        "best client",
        "P10 of change",
        "P90 of change",
        "best round",
        "rounds to target",
        "D_cos",
        "D_man",
    ):
        assert (
            title in answer.out and title not in equipoise("compare", *words[1:-1], "plain").out
        ), title
    rows = {
        (row["method"], row["measure"]): row
        for row in csv.DictReader(io.StringIO(Path("c/table.csv").read_text()))
        if row["metric"] == "accuracy"
    }
    plain = {
        (row["method"], row["measure"])
        for row in csv.DictReader(io.StringIO(Path("plain/table.csv").read_text()))
        if row["metric"] == "accuracy"
    }
    assert plain == set(rows), "all of them, asked for or not"
    runs = [eq.Run(path) for path in Path("c/runs").iterdir()]
    together, alone = sorted(runs, key=lambda run: run.config["method"]["name"] == "standalone")
    change = [together.final()[client] - alone.final()[client] for client in ROWS]
    assert float(rows["fedavg", "p10_change"]["value"]) == pytest.approx(np.percentile(change, 10))
    assert float(rows["fedavg", "p90_change"]["value"]) == pytest.approx(np.percentile(change, 90))
    assert float(rows["fedavg", "best"]["value"]) == max(together.final().values())
    means = {
        n: np.mean(
            [
                row["value"]
                for row in together.table(
                    round=n, phase="received", split="test", metric="accuracy"
                )
            ]
        )
        for n in range(1, 9)
    }
    assert float(rows["fedavg", "best_round"]["value"]) == max(means, key=lambda n: (means[n], -n))
    assert float(rows["fedavg", "rounds_to_target"]["value"]) == next(
        n for n, mean in means.items() if mean >= 0.7
    )
    last = together.table(round=8, split="parameters", metric="angle")
    assert (
        float(rows["fedavg", "d_cos"]["value"])
        == pytest.approx(np.mean([row["value"] for row in last]))
        and len(last) == 3
    )
    assert rows["standalone", "d_cos"]["value"] == "", "training alone has no common model"
    saved = json.loads(Path("c/comparison.json").read_text())
    assert saved["target"] == 0.7 and saved["entries"][1]["measures"]["best_round"] == float(
        rows["fedavg", "best_round"]["value"]
    )
    assert "D_man" in equipoise("show", "c").out, "kept with the comparison"
    majority = float(rows["fedavg", "majority"]["value"])
    assert majority == pytest.approx(np.mean(list(together.majority().values())))
    assert "did you mean 'p10_change'?" in equipoise(*words, "--measures", "p10_chang").err


def test_what_is_not_over_is_marked(hospitals: Path, equipoise: Terminal) -> None:
    words = (
        "--data",
        "hospitals",
        "--label",
        "disease",
        "--set",
        "model={name: mlp, hidden: [6]}",
        "--set",
        "evaluation.main=loss",
        "--out",
        "c",
        "--quiet",
    )
    answer = equipoise("compare", *words, "--rounds", "10", "--set", "training.lr=0.02")
    assert (
        "fedavg ‡" in answer.out
        and "‡ fedavg on natural: not converged: mean loss still got better by 0." in answer.out
    )
    (folder,) = Path("c/runs").glob("fedavg*")
    assert "not converged: mean loss still got better" in equipoise("show", folder).out
    equipoise("report", folder, "--out", "page.html")
    assert "Not converged: mean loss still got better" in Path("page.html").read_text()
    equipoise("report", "c", "--out", "both.html")
    assert "Not converged: mean loss still got better" in Path("both.html").read_text()
    assert json.loads(Path("c/comparison.json").read_text())["not converged"]["natural"] == [
        "standalone",
        "fedavg",
    ]


def test_a_model_that_the_experiment_has_not_is_refused_before_round_1(
    hospitals: Path, equipoise: Terminal
) -> None:
    answer = equipoise(
        "run",
        "--data",
        "hospitals",
        "--label",
        "disease",
        "--method",
        "standalone",
        "--set",
        "method.model=modle",
        "--out",
        "run",
    )
    assert answer.code == 2 and answer.err.startswith(
        "error: unknown model of the experiment under method.model 'modle'; did you mean 'model'?"
    )
    assert not Path("run").exists()


def test_a_run_from_python_says_how_data_were_understood(
    hospitals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = eq.Experiment(
        data={"name": "hospitals", "label": "disease"},
        model={"name": "mlp", "hidden": [4]},
        rounds=1,
        workers=0,
    )
    eq.run(wanted, "run")
    said = capsys.readouterr().err
    assert "hospitals: 620 rows, classification, label disease" in said
    assert (
        "sites (rows): boston (320), lyon (240), wien (60)" in said
        and "warning: fewer than 30 test rows in wien (12)" in said
    )


@pytest.mark.thorough
def test_the_majority_class_is_on_the_page_and_on_a_models_card(
    hospitals: Path, equipoise: Terminal
) -> None:
    equipoise(
        "run",
        "--data",
        "hospitals",
        "--label",
        "disease",
        *SMALL,
        "--workers",
        "0",
        "--quiet",
        "--out",
        "run",
    )
    equipoise("report", "run", "--out", "page.html")
    assert "accuracy of always predicting it" in Path("page.html").read_text()
    equipoise("export", "run", "--out", "model.safetensors")
    shares = eq.Run("run").majority()
    assert all(
        f"(majority class {share:.4f})" in Path("model.md").read_text() for share in shares.values()
    )
