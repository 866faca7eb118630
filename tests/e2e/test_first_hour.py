"""The first hour of a hospital's data manager: files as they are, a look at them, a schema, a
comparison; and what the commands say on the way.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml

import equipoise as eq
from equipoise.storage.store import RunError
from tests.helpers.terminal import Terminal, in_a_process

SMALL = ("--rounds", "1", "--set", "model={name: mlp, hidden: [4]}")
WRITTEN = {
    "boston": (",", ".", "utf-8", "{0}-{1:02}-{2:02}"),
    "lyon": ("\t", ".", "utf-16", "{2:02}/{1:02}/{0}"),
    "wien": (";", ",", "cp1252", "{2}.{1}.{0}"),
}


@pytest.fixture
def hospitals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three sites, each with its own way of writing.

    The only gap and the only rare ward are in one row each.
    """
    rng = np.random.default_rng(0)
    (tmp_path / "hospitals").mkdir()
    for site, (separator, decimal, encoding, date) in WRITTEN.items():
        rows = [["patient_id", "admitted", "ward", "pressure", "rate", "disease"]]
        for i in range(60):
            pressure = (
                ""
                if (site, i) == ("wien", 5)
                else f"{rng.normal(120, 9):.1f}".replace(".", decimal)
            )
            ward = "Süd" if (site, i) == ("wien", 7) else "Nord" if i % 2 else "West"
            rows.append(
                [
                    f"{site[0]}{i}",
                    date.format(2024, 1 + i % 12, 1 + i % 28),
                    ward,
                    pressure,
                    f"{rng.normal(75, 9):.1f}".replace(".", decimal),
                    "Well " if (site, i) == ("lyon", 2) else "well" if i % 3 else "sick",
                ]
            )
        (tmp_path / "hospitals" / f"{site}.csv").write_bytes(
            "".join(separator.join(row) + "\n" for row in rows).encode(encoding)
        )
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_comparison_over_seeds_ends_in_a_table(hospitals: Path) -> None:
    answer = in_a_process(
        "compare",
        "--data",
        "hospitals",
        "--label",
        "disease",
        "--seeds",
        "1-2",
        *SMALL,
        folder=hospitals,
    )
    assert answer.code == 0, answer.err
    assert (
        "mean ± half of the 95% interval over 2 seeds" in answer.out
        and "fedavg" in answer.out
        and "standalone" in answer.out
    )
    assert answer.err.startswith("hospitals: 3 sites, 180 rows, classification, label disease\n")
    assert answer.err.count("nearly equal") == 1  # once, not for every run


@pytest.mark.thorough
def test_a_regression_over_seeds_is_compared_though_their_centres_differ(hospitals: Path) -> None:
    answer = in_a_process(
        "compare",
        "--data",
        "hospitals",
        "--label",
        "rate",
        "--seeds",
        "1-2",
        *SMALL,
        "--quiet",
        folder=hospitals,
    )
    assert answer.code == 0, answer.err
    assert "rmse on test data" in answer.out and answer.err == ""


def test_data_check_shows_how_dirty_files_are_understood(
    hospitals: Path, equipoise: Terminal
) -> None:
    answer = equipoise("data", "check", "hospitals", "--label", "disease")
    assert answer.code == 0 and answer.err == ""
    for said in (
        "boston  60    12",
        "patient_id  identifier",
        "admitted    date",
        "ward        category",
        "pressure    number",
        "read as commas, UTF-8: boston.csv",
        "read as tabs, UTF-16: lyon.csv",
        "read as semicolons, Latin-1, decimal commas in pressure, rate: wien.csv",
        "the classes 'Well' (1 row) and 'well'",
        "column 'patient_id' looks like an identifier",
        "fewer than 30 test rows",
    ):
        assert said in answer.out, said
    found = json.loads(equipoise("data", "check", "hospitals", "--label", "disease", "--json").out)
    assert [site["rows"] for site in found["sites"]] == [60, 60, 60] and found["schema"][
        "label"
    ] == "disease"
    assert "guessed" not in answer.out
    for file in (hospitals / "hospitals").iterdir():
        encoding = WRITTEN[file.stem][2]
        file.write_bytes(
            file.read_bytes().decode(encoding).replace("disease", "label").encode(encoding)
        )
    assert (
        "label label (guessed from its name; --label chooses another)"
        in equipoise("data", "check", "hospitals").out
    )


def test_a_schema_is_saved_edited_and_given_back(hospitals: Path, equipoise: Terminal) -> None:
    answer = equipoise("data", "check", "hospitals", "--label", "disease", "--save", "schema.yaml")
    assert answer.code == 0 and "--schema schema.yaml" in answer.err
    assert (
        "exists; choose another file"
        in equipoise(
            "data", "check", "hospitals", "--label", "disease", "--save", "schema.yaml"
        ).err
    )
    schema = yaml.safe_load(Path("schema.yaml").read_text(encoding="utf-8"))
    schema["columns"] = [
        column for column in schema["columns"] if column["name"] in ("pressure", "ward")
    ]
    Path("schema.yaml").write_text(yaml.safe_dump(schema, allow_unicode=True), encoding="utf-8")
    shown = equipoise("data", "check", "hospitals", "--schema", "schema.yaml")
    assert "admitted    not in the schema" in shown.out and "looks like" not in shown.out
    answer = equipoise(
        "run",
        "--data",
        "hospitals",
        "--schema",
        "schema.yaml",
        *SMALL,
        "--workers",
        "0",
        "--out",
        "run",
    )
    assert answer.code == 0, answer.err
    run = eq.Run("run")
    assert run.task.shape == (1 + 1 + 4,)  # pressure and its gaps; three wards and others
    assert run.config["data"]["schema"]["label"] == "disease"
    answer = equipoise("predict", "run", "hospitals/wien.csv", "--client", "wien")
    assert len(answer.out.splitlines()) == 61
    wrong = equipoise("run", "--data", "hospitals", "--schema", "nowhere.yaml", "--dry-run")
    assert wrong.code == 2 and wrong.err.startswith(
        "error: data.schema: expected a schema, or the path of its YAML file, got 'nowhere.yaml'"
    )


def test_what_the_commands_say_names_the_option(hospitals: Path, equipoise: Terminal) -> None:
    words = (
        "run",
        "--data",
        "hospitals",
        "--label",
        "disease",
        *SMALL,
        "--workers",
        "0",
        "--out",
        "run",
    )
    answer = equipoise(*words)
    assert answer.code == 0 and "hospitals: 3 sites" in answer.err
    assert "--overwrite" in equipoise(*words).err
    assert equipoise(*words, "--overwrite", "--quiet").err == ""
    assert "say which client with --client" in equipoise("predict", "run", "hospitals/wien.csv").err
    with pytest.raises(RunError, match="holds a run already; .* --overwrite"):
        eq.run(
            {"data": {"name": "hospitals", "label": "disease"}, "workers": 0, "rounds": 1}, "run"
        )
    answer = equipoise(
        "compare", "--data", "digits", "--seeds", "5", "--methods", "fedavg", "--dry-run"
    )
    assert (
        answer.err == "--seeds 5 is one seed; did you mean 1-5?\n" and "plan: 2 runs" in answer.out
    )
    for seeds in ("1", "1-5", "1,5"):
        assert (
            equipoise(
                "compare", "--data", "digits", "--seeds", seeds, "--methods", "fedavg", "--dry-run"
            ).err
            == ""
        )


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            ("data.split=[0.8, 0.2, 0.0]",),
            "nothing was measured: data.split gives tests no share; set data.split=[0.7, 0.1, "
            "0.2], say",
        ),
        (
            ("evaluation.splits=[validation]",),
            "nothing was measured on test data: evaluation.splits names validation; put test into "
            "it",
        ),
        (
            ("data.samples=12",),
            "nothing was measured: no client has a test sample, since the largest has 4 and 20% "
            "of that is less than one",
        ),
    ],
)
def test_a_run_that_measured_nothing_says_why(
    equipoise: Terminal, tmp_path: Path, settings: tuple[str, ...], why: str
) -> None:
    more = [word for setting in settings for word in ("--set", setting)]
    answer = equipoise(
        "run",
        "--data",
        "digits",
        "--clients",
        "3",
        *SMALL,
        "--workers",
        "0",
        "--quiet",
        "--out",
        tmp_path / "run",
        *more,
    )
    assert answer.code == 0, answer.err
    assert why in answer.out


def test_the_module_runs_and_the_version_is_printed(equipoise: Terminal) -> None:
    assert equipoise("--version").out == f"equipoise {eq.__version__}\n"
    done = subprocess.run(
        [sys.executable, "-m", "equipoise", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == f"equipoise {eq.__version__}\n"


def test_the_public_names_are_listed() -> None:
    assert {
        "run",
        "compare",
        "Experiment",
        "Method",
        "from_arrays",
        "data",
        "methods",
        "__version__",
    } <= set(dir(eq))
    assert not [name for name in dir(eq) if not hasattr(eq, name)]
    assert "importlib" not in dir(eq) and "TYPE_CHECKING" not in dir(eq)


@pytest.mark.parametrize("classes", [12, 14])
def test_data_check_counts_the_first_twelve_classes_and_says_how_many_more_there_are(
    classes: int, tmp_path: Path, equipoise: Terminal
) -> None:
    lines = [f"{0.37 * row:.2f},kind{row % classes:02}" for row in range(20 * classes)]
    (tmp_path / "site.csv").write_text("\n".join(["x,label", *lines]) + "\n")
    answer = equipoise("data", "check", str(tmp_path)).out
    assert (
        "kind11" in answer
        and "kind12" not in answer
        and ("... and 2 more classes" in answer) == (classes == 14)
    )


def test_data_check_takes_settings_of_data_only(equipoise: Terminal) -> None:
    answer = equipoise("data", "check", "digits", "--set", "rounds=3")
    assert (
        answer.code == 2
        and answer.err
        == "error: --set: expected settings of data such as data.task=regression, got rounds\n"
    )
