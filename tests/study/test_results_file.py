"""The file of results: changed settings, cut and damaged lines, and two processes at once."""

from __future__ import annotations

import json
import threading

import pytest
import yaml
from typer.testing import CliRunner

from equipoise.cli import app
from equipoise.comparison.executor import Progress
from equipoise.storage.store import RunError
from equipoise.study.definition import load_study
from equipoise.study.page import progress_of
from equipoise.study.plan import plan_study
from equipoise.study.records import append_records, drop_partial_run, read_records
from equipoise.study.run import (
    known_results,
    missing_runs,
    read_table,
    results_path,
    run_study,
)
from tests.helpers.constructed import constructed

STUDY = {
    "title": "Digits",
    "experiment": {
        "data": {"name": "digits", "clients": 3, "samples": 150},
        "model": {"name": "mlp", "hidden": [4]},
        "training": {"lr": 0.1},
        "rounds": 1,
    },
    "methods": {"kdia": {"name": "kdia", "preset": "quick", "serves": ["global", "teacher"]}},
    "conditions": {"even": {"data.partition": "iid"}},
    "seeds": [0, 1],
    "measures": ["average"],
    "claims": ["kdia.teacher.average > kdia.global.average"],
    "scales": {"paper": {"core_hours": 1}},
}


def write(folder, **changes):
    path = folder / "digits.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return path


@pytest.fixture
def results(tmp_path):
    """Complete results of the study: two runs of training alone, two runs with two models."""
    study = load_study(write(tmp_path))
    append_records(results_path(study, "paper"), constructed(study))
    return results_path(study, "paper")


def with_lr(folder, lr, value):
    """Change the learning rate of the study, and add results of this value."""
    path = write(folder, experiment={**STUDY["experiment"], "training": {"lr": lr}})
    study = load_study(path)
    values = dict.fromkeys(("a", "b"), value)
    for record in constructed(study):
        changed = {"values": values, "test_sizes": dict.fromkeys(values, 50), "means": [value] * 3}
        append_records(results_path(study, "paper"), [record.model_copy(update=changed)])
    return path


def test_after_a_change_of_settings_the_table_has_the_new_results_only(tmp_path):
    with_lr(tmp_path, 0.1, 0.25)
    path = with_lr(tmp_path, 0.01, 0.75)
    table = read_table(path)
    assert table.samples["kdia.global", "even", "average"].values == {0: 0.75, 1: 0.75}
    assert table.outdated == 6
    shown = CliRunner().invoke(app, ["study", str(path), "--out", str(tmp_path / "runs")])
    assert shown.exit_code == 0, shown.output
    assert "6 lines of" in shown.output
    assert "belong to other settings of the study and are not shown" in shown.output


def test_results_of_methods_that_are_not_run_now_are_no_outdated_ones(tmp_path):
    methods = {"fedavg": "fedavg", "fedprox": "fedprox"}
    path = write(tmp_path, methods=methods, claims=[])
    study = load_study(path)
    append_records(results_path(study, "paper"), constructed(study))
    outcome = run_study(path, only=["fedavg"], out=tmp_path / "runs")
    assert outcome.table.outdated == 0
    assert ("fedprox", "even", "average") in outcome.table.samples


@pytest.mark.parametrize("cut", [40, 5000], ids=["inside the line", "at its beginning"])
def test_a_run_whose_last_line_was_cut_counts_as_missing_as_a_whole(results, cut):
    content = results.read_bytes()
    *_, last = content.rstrip(b"\n").split(b"\n")
    results.write_bytes(content[: -min(cut, len(last))])
    study = load_study(results.parents[1] / "digits.yaml")
    plan = plan_study(study, study.scale("paper"))
    missing = missing_runs(plan, read_records(results))
    assert [(run.method, run.seed) for run in missing] == [("kdia", 1)]
    drop_partial_run(results)
    again = read_records(results)
    assert [(record.method, record.seed) for record in again[2:]] == [("kdia", 0), ("kdia", 0)]
    assert missing_runs(plan, again) == missing


def test_a_cut_line_of_a_run_that_has_just_begun_leaves_the_run_before_it(results):
    before = read_records(results)
    with results.open("a") as file:
        file.write('{"run":"another-s0-0123456789","meth')
    assert read_records(results) == before


CLIENTS = ("amazon-0", "dslr-0", "caltech-0", "webcam-0")


def _set(key, value):
    return lambda record: {**record, key: value}


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (_set("test_sizes", {}), "test_sizes: expected every client"),
        (_set("test_sizes", {"amazon-0": 10**30}), "test_sizes: amazon-0: expected"),
        (_set("test_sizes", {"amazon-0": -5}), "test_sizes: amazon-0: expected"),
        (_set("means", []), "means"),
        (_set("rounds", [1]), "means"),
        (_set("deviations", [0.1]), "deviations"),
        (_set("rounds", [10**30, 2, 3]), "rounds"),
        (_set("seed", "0"), "seed"),
        (_set("seed", 10**400), "seed"),
        (_set("means", [0.5, 0.5, 5.0]), "means: expected accuracies in [0, 1]"),
        (_set("validation", -0.1), "validation: expected accuracies in [0, 1]"),
        (_set("cost", {"seconds": float("inf")}), "cost: seconds"),
        (_set("extra", 1), "extra: unknown key"),
        (_set("rounds", [3, 2, 1]), "rounds: expected rising numbers"),
        (_set("rounds", [1, 2, 2**62]), "rounds"),
        (_set("cost", {"average": 0.9}), "cost: expected no 'average'"),
        (_set("test_sizes", dict.fromkeys(CLIENTS, 0)), "expected test samples of client"),
        (lambda record: 5, "expected the result of a run"),
    ],
)
def test_a_doctored_line_is_named_with_what_is_wrong(results, damage, hint):
    lines = results.read_text().splitlines()
    lines[1] = json.dumps(damage(json.loads(lines[1])))
    results.write_text("\n".join(lines) + "\n")
    with pytest.raises(RunError) as caught:
        read_records(results)
    assert f"{results}, line 2: " in str(caught.value)
    assert hint in str(caught.value)


def test_two_results_of_one_model_that_differ_are_refused_and_equal_ones_count_once(results):
    lines = results.read_text().splitlines()
    repeated = json.loads(lines[1])
    results.write_text("\n".join([*lines, json.dumps(repeated)]) + "\n")
    path = results.parents[1] / "digits.yaml"
    assert len(read_table(path).samples["kdia.global", "even", "average"].values) == 2
    repeated["values"]["amazon-0"] = 0.123
    results.write_text("\n".join([*lines, json.dumps(repeated)]) + "\n")
    with pytest.raises(RunError, match=f"line {len(lines) + 1}: .* found another one in line 2"):
        read_records(results)


def test_one_seed_cannot_pass_for_another(results):
    first_seed = [record for record in read_records(results) if record.seed == 0]
    results.unlink()
    doctored = [record.model_copy(update={"seed": 1}) for record in first_seed]
    append_records(results, [*first_seed, *doctored])
    table = read_table(results.parents[1] / "digits.yaml")
    assert set(table.samples["kdia.global", "even", "average"].values) == {0}
    assert table.outdated == len(doctored)


def test_a_complete_last_line_without_a_line_break_counts(results):
    content = results.read_bytes()
    results.write_bytes(content.rstrip(b"\n"))
    assert len(read_records(results)) == 6
    drop_partial_run(results)
    assert results.read_bytes() == content


def test_results_of_two_metrics_are_refused(results):
    lines = results.read_text().splitlines()
    first = {**json.loads(lines[0]), "metric": "rmse"}
    results.write_text("\n".join([json.dumps(first), *lines[1:]]) + "\n")
    with pytest.raises(
        RunError, match="expected one metric in all runs, found rmse in .* accuracy"
    ):
        read_table(results.parents[1] / "digits.yaml")


def test_changes_are_counted_against_the_baseline_that_the_study_has_now(tmp_path):
    """The same runs of a method belong to another baseline after a change of shared settings."""
    own = {"kdia": {**STUDY["methods"]["kdia"], "training": {"lr": 0.1}}}
    changes = {"methods": own, "measures": ["average", "change"]}
    study = load_study(write(tmp_path, **changes))
    append_records(results_path(study, "paper"), constructed(study))
    slower = {**STUDY["experiment"], "training": {"lr": 0.01}}
    study = load_study(write(tmp_path, experiment=slower, **changes))
    assert not read_table(study.path).samples.get(("kdia.global", "even", "change"))
    assert progress_of(read_table(study.path)).done == 0
    alone = [record for record in constructed(study) if record.method == "standalone"]
    append_records(results_path(study, "paper"), alone)
    table = read_table(study.path)
    assert set(table.samples["kdia.global", "even", "change"].values) == {0, 1}
    assert progress_of(table).complete


def test_a_run_whose_baseline_is_missing_is_not_counted_as_done(results, tmp_path):
    records = read_records(results)
    results.unlink()
    append_records(results, [one for one in records if (one.method, one.seed) != ("standalone", 1)])
    table = read_table(
        write(tmp_path, measures=["average", "change"], claims=["kdia.teacher.change > 0"])
    )
    assert (progress_of(table).done, progress_of(table).planned) == (1, 2)
    assert table.samples["kdia.teacher", "even", "change"].undefined == ()


def test_a_study_that_was_stopped_at_once_leaves_no_empty_file_of_results(tmp_path):
    append_records(tmp_path / "results" / "digits.paper.jsonl", [])
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("line", [b"[" * 100_000, b"\xff\xfe{}", b""], ids=["deep", "utf", "empty"])
def test_a_line_that_is_no_json_is_named(results, line):
    lines = results.read_bytes().split(b"\n")
    lines[1] = line
    results.write_bytes(b"\n".join(lines))
    with pytest.raises(RunError, match="line 2: expected the result of a run"):
        read_records(results)


def test_a_second_process_with_another_folder_of_runs_is_refused(tmp_path):
    path = write(tmp_path, methods={"fedavg": "fedavg"}, claims=[], baselines="none", seeds=[0])
    caught = []

    def run_again():
        try:
            run_study(path, out=tmp_path / "second")
        except RunError as error:
            caught.append(str(error))

    def while_running(missing, finished):
        thread = threading.Thread(target=run_again)
        thread.start()
        thread.join()

    outcome = run_study(path, out=tmp_path / "first", jobs=1, progress=Progress(while_running))
    assert not outcome.failures
    assert len(caught) == 1
    assert f"{outcome.results} is being written by another process" in caught[0]


def test_the_folder_of_the_page_is_created(results, tmp_path):
    study = tmp_path / "digits.yaml"
    page = tmp_path / "no" / "such" / "folder" / "p.md"
    arguments = ["study", str(study), "--out", str(tmp_path / "runs"), "--page"]
    shown = CliRunner().invoke(app, [*arguments, str(page)])
    assert shown.exit_code == 0, shown.output
    assert page.read_text().startswith("# Digits")
    refused = CliRunner().invoke(app, [*arguments, str(page.parent)])
    assert refused.exit_code != 0
    assert "--page: expected a Markdown file" in f"{refused.output}{refused.exception}"


def in_another_study(folder, **changes):
    """Write a study with the runs of `STUDY` under another row and condition."""
    row = {"teacher": STUDY["methods"]["kdia"]}
    names = {"methods": row, "conditions": {"iid": {"data.partition": "iid"}}}
    path = folder / "other.yaml"
    claims = ["teacher.teacher.average > teacher.global.average"]
    path.write_text(yaml.safe_dump({**STUDY, **names, "claims": claims, **changes}))
    return path


def test_results_of_another_study_in_the_folder_are_not_run_again(results, tmp_path):
    path = in_another_study(tmp_path)
    plan = CliRunner().invoke(app, ["study", str(path), "--dry-run"])
    assert "0 of 4 runs to do" in plan.output
    numbers = []
    progress = Progress(on_plan=lambda missing, finished: numbers.append((len(missing), finished)))
    copied = run_study(path, out=tmp_path / "runs", progress=progress).table
    assert numbers == [(0, 4)]
    assert not list((tmp_path / "runs").glob("*/run.db"))
    original = read_table(tmp_path / "digits.yaml")
    for model in ("global", "teacher"):
        values = copied.samples[f"teacher.{model}", "iid", "average"].values
        assert values == original.samples[f"kdia.{model}", "even", "average"].values
    assert {record.baseline for record in copied.records_of("teacher", "iid")} == {
        record.run for record in copied.records_of("standalone", "iid")
    }


def test_a_damaged_file_of_another_study_is_left_to_that_study(results, tmp_path):
    results.write_text("damaged\n")
    path = in_another_study(tmp_path, seeds=[0], baselines="none")
    assert run_study(path, out=tmp_path / "runs").table.records


def test_a_run_is_copied_only_with_all_models_that_rows_name(results, tmp_path):
    lines = [line for line in results.read_text().splitlines() if '"model":"teacher"' not in line]
    results.write_text("\n".join(lines) + "\n")
    study = load_study(in_another_study(tmp_path))
    plan = plan_study(study, study.scale("paper"))
    known = known_results(plan, results_path(study, "paper"))
    assert {record.method for record in known} == {"standalone"}
    one_row = {"row": {"name": "kdia", "preset": "quick", "serves": ["global"]}}
    claims = ["row.global.average > 0"]
    study = load_study(in_another_study(tmp_path, methods=one_row, claims=claims))
    plan = plan_study(study, study.scale("paper"))
    known = known_results(plan, results_path(study, "paper"))
    assert {record.method for record in known} == {"standalone", "row"}


def test_a_run_without_a_model_that_a_row_names_is_missing(results, tmp_path):
    lines = [line for line in results.read_text().splitlines() if '"model":"teacher"' not in line]
    results.write_text("\n".join(lines) + "\n")
    study = load_study(tmp_path / "digits.yaml")
    missing = missing_runs(plan_study(study, study.scale("paper")), read_records(results))
    assert {run.method for run in missing} == {"kdia"}
    assert not progress_of(read_table(study.path)).complete


def test_results_of_other_settings_in_the_folder_are_not_taken(results, tmp_path):
    experiment = {**STUDY["experiment"], "training": {"lr": 0.2}}
    path = in_another_study(tmp_path, experiment=experiment, seeds=[0], baselines="none")
    run_study(path, out=tmp_path / "runs")
    assert list((tmp_path / "runs").glob("*/run.db"))


def test_the_first_seed_of_all_rows_runs_first(tmp_path):
    order = []
    progress = Progress(on_end=lambda cell, failure: order.append(cell.seed))
    run_study(write(tmp_path), out=tmp_path / "runs", jobs=1, progress=progress)
    assert order == [0, 0, 1, 1]
