"""Rows and measures of a study's table, from constructed results."""

from __future__ import annotations

import numpy as np
import pytest
import yaml

from equipoise.experiment import ConfigurationError
from equipoise.report.study import pictures_of
from equipoise.study.definition import load_study
from equipoise.study.page import condition_grids, describe_runs, study_page
from equipoise.study.plan import plan_study
from equipoise.study.records import Record
from equipoise.study.table import StudyTable, measure, redraw
from equipoise.study.verdicts import OPEN

STUDY = {
    "title": "Constructed",
    "experiment": {"data": {"name": "digits", "clients": 2, "split": [0.6, 0.2, 0.2]}, "rounds": 4},
    "methods": {
        "fedavg": "fedavg",
        "kdia": {"name": "kdia", "serves": ["global", "teacher"], "select": "validation"},
    },
    "conditions": {"even": {"data.partition": "iid"}},
    "seeds": [0, 1],
    "measures": ["average", "rounds_to_target", "speed_up", "cf"],
    "target": "fedavg.best",
    "claims": ["kdia.teacher.speed_up > 1"],
    "scales": {"paper": {"core_hours": 1}},
}


def study(folder, **changes):
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}))
    return load_study(path)


def record(method, seed, means, model="global", values=(0.7, 0.9), **fields):
    return Record(
        run=f"{method}-{seed}",
        method=method,
        condition="even",
        seed=seed,
        model=model,
        main=model == "global",
        metric="accuracy",
        values=dict(zip("ab", values, strict=True)),
        test_sizes={"a": 100, "b": 100},
        rounds=list(range(1, len(means) + 1)),
        means=list(means),
        **fields,
    )


RECORDS = (
    record("fedavg", 0, [0.2, 0.4, 0.5, 0.6]),
    record("fedavg", 1, [0.2, 0.4, 0.6, 0.5]),
    record("kdia", 0, [0.1, 0.2, 0.3, 0.4], validation=0.7),
    record("kdia", 0, [0.5, 0.6, 0.7, 0.7], "teacher", (0.9, 0.9), validation=0.8),
    record("kdia", 1, [0.1, 0.2, 0.3, 0.4], validation=0.8),
    record("kdia", 1, [0.6, 0.6, 0.7, 0.7], "teacher", (0.6, 0.6), validation=0.8),
)


def test_rounds_and_speed_up_are_counted_to_the_best_mean_of_a_row_seed_by_seed(tmp_path):
    samples = StudyTable(study(tmp_path), "paper", RECORDS).samples
    assert samples["fedavg", "even", "rounds_to_target"].values == {0: 4, 1: 3}
    assert samples["kdia.teacher", "even", "rounds_to_target"].values == {0: 2, 1: 1}
    assert samples["kdia.teacher", "even", "speed_up"].values == {0: 2, 1: 3}


def test_a_target_may_be_a_number_for_each_condition(tmp_path):
    table = StudyTable(study(tmp_path, target={"even": 0.4}), "paper", RECORDS)
    assert table.samples["kdia.global", "even", "rounds_to_target"].values == {0: 4, 1: 4}
    assert table.samples["kdia.global", "even", "speed_up"].values == {0: 0.5, 1: 0.5}


def test_a_row_that_misses_the_target_in_some_seed_leaves_its_claim_open(tmp_path):
    slow = record("kdia", 1, [0.1, 0.2, 0.3, 0.4], "teacher")
    table = StudyTable(study(tmp_path), "paper", (*RECORDS[:5], slow))
    assert table.samples["kdia.teacher", "even", "speed_up"].undefined == (1,)
    assert table.verdicts[0].decision == OPEN
    assert "seed 1" in table.verdicts[0].reason


def test_the_selected_row_is_the_better_model_on_validation_data_and_the_main_one_if_equal(
    tmp_path,
):
    samples = StudyTable(study(tmp_path), "paper", RECORDS).samples
    assert samples["kdia.selected", "even", "average"].values == {
        0: pytest.approx(0.9),  # the teacher
        1: pytest.approx(0.8),  # the global model
    }


def test_a_diverged_seed_leaves_claims_about_the_selected_row_open(tmp_path):
    nan = {"values": {"a": None, "b": None}, "validation": None}
    diverged = [
        record("kdia", 1, [0.1], model).model_copy(update=nan) for model in ("global", "teacher")
    ]
    claims = {"claims": ["kdia.selected.average > fedavg.average"]}
    table = StudyTable(study(tmp_path, **claims), "paper", (*RECORDS[:4], *diverged))
    assert table.samples["kdia.selected", "even", "average"].undefined == (1,)
    assert table.verdicts[0].decision == OPEN
    assert "with seed 1" in table.verdicts[0].reason


def test_a_mean_over_some_of_the_seeds_says_so(tmp_path):
    slow = record("kdia", 1, [0.1, 0.2, 0.3, 0.4], "teacher")
    table = StudyTable(study(tmp_path), "paper", (*RECORDS[:5], slow))
    row = next(row for row in condition_grids(table)[0].rows if row[0] == "kdia.teacher")
    assert "2.0 (1 of 2 seeds)" in row


def test_a_line_break_in_a_claim_does_not_end_the_table(tmp_path):
    claims = [{"claim": "kdia.teacher.average > 0.1", "says": "first line\nsecond | line\n"}]
    page = study_page(StudyTable(study(tmp_path, claims=claims), "paper", RECORDS))
    assert "| first line second \\| line |" in page


def test_lines_of_other_settings_are_named_also_if_there_are_no_others(tmp_path):
    table = StudyTable(study(tmp_path), "paper", (), outdated=12)
    assert "not shown: 12" in describe_runs(table)


def test_fairness_of_one_model_with_one_test_set_comes_from_the_models_after_local_training(
    tmp_path,
):
    alone = record("standalone", 0, [0.5], values=(0.4, 0.6))
    shared = record(
        "fedavg",
        0,
        [0.6],
        values=(0.6, 0.6),
        after_local={"a": 0.5, "b": 0.7},
        baseline="standalone-0",
    )
    samples = StudyTable(study(tmp_path), "paper", (alone, shared)).samples
    assert samples["fedavg", "even", "cf"].values == {0: pytest.approx(100)}


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"measures": ["averge"], "claims": []}, "average"),
        ({"target": None}, "rounds_to_target"),
        ({"target": "fedavk.best"}, "fedavg"),
        ({"target": "soon"}, "soon"),
        ({"target": {"odd": 0.5}}, "odd"),
        ({"speed_up_over": "scaffold"}, "scaffold"),
        ({"methods": {"fedprox": "fedprox"}, "claims": []}, "speed_up_over"),
        ({"methods": {"fedavg": {"name": "fedavg", "select": "test"}}, "claims": []}, "validation"),
    ],
)
def test_wrong_measures_targets_and_selections_are_refused_before_anything_runs(
    tmp_path, changes, hint
):
    with pytest.raises(ConfigurationError, match=hint):
        study(tmp_path, **changes)


def test_selecting_without_validation_data_is_a_refusal_of_that_method_only(tmp_path):
    data = {"name": "digits", "clients": 2, "split": [0.8, 0.0, 0.2]}
    loaded = study(tmp_path, experiment={"data": data, "rounds": 4})
    plan = plan_study(loaded, loaded.scale("paper"))
    assert [refusal.method for refusal in plan.refusals] == ["kdia"]
    assert "validation" in plan.refusals[0].reason


def test_clients_that_share_a_test_set_have_the_sampling_error_of_one_set():
    one = record("fedavg", 0, [0.6], values=(0.6, 0.6))
    variance = 0.6 * 0.4 / 100
    for test in ("global", "drawn"):
        shared = np.var(redraw(one, None, "average", test))
        assert shared == pytest.approx(variance, rel=0.15)
    own = np.var(redraw(one, None, "average", "local"))
    assert own == pytest.approx(variance / 2, rel=0.15)
    assert redraw(one, None, "speed_up") is None


@pytest.mark.parametrize("column", ["average", "std", "worst"])
def test_clients_of_one_domain_share_its_test_set_and_domains_do_not(column):
    """Two domains with two clients each; the reference draws one test set for each domain."""
    accuracies = {"amazon-0": 0.6, "amazon-1": 0.6, "dslr-0": 0.8, "dslr-1": 0.8}
    domains = {client: client.partition("-")[0] for client in accuracies}
    sizes = dict.fromkeys(accuracies, 100)
    changes = {"values": accuracies, "test_sizes": sizes, "groups": domains}
    one = record("fedavg", 0, [0.5]).model_copy(update=changes)
    rng = np.random.default_rng(0)
    amazon, dslr = rng.binomial(100, 0.6, 4000) / 100, rng.binomial(100, 0.8, 4000) / 100
    drawn = np.stack([amazon, amazon, dslr, dslr])
    reduce = {"average": np.mean, "std": np.std, "worst": np.min}[column]
    expected = np.var(reduce(drawn, axis=0))
    assert np.var(redraw(one, None, column, "site")) == pytest.approx(expected, rel=0.2)


def test_errors_of_training_alone_cancel_between_rows_that_are_compared_with_it():
    alone = record("standalone", 0, [0.5], values=(0.5, 0.6))
    rows = [record(name, 0, [0.5], values=(0.7, 0.8)) for name in ("fedavg", "fedprox")]
    changes = [redraw(one, alone, "change") for one in rows]
    averages = [redraw(one, None, "average") for one in rows]
    np.testing.assert_allclose(changes[0] - changes[1], averages[0] - averages[1], atol=1e-12)
    assert np.var(changes[0]) > 1.5 * np.var(averages[0])


@pytest.mark.parametrize(
    "column", ["average", "worst", "std", "best", "change", "worst_change", "p10_change", "cf"]
)
@pytest.mark.thorough
def test_sampling_errors_are_those_of_tables_drawn_anew(column):
    """The reference draws accuracies one by one and computes each number as the table does."""
    clients = "abc"
    sizes = dict.fromkeys(clients, 200)
    alone = record("standalone", 0, [0.5]).model_copy(
        update={"values": dict(zip(clients, (0.5, 0.6, 0.8), strict=True)), "test_sizes": sizes}
    )
    together = record("fedavg", 0, [0.5]).model_copy(
        update={"values": dict(zip(clients, (0.7, 0.65, 0.9), strict=True)), "test_sizes": sizes}
    )
    rng = np.random.default_rng(0)

    def drawn(one):
        values = {client: rng.binomial(200, value) / 200 for client, value in one.values.items()}
        return one.model_copy(update={"values": values})

    reference = np.var([measure(drawn(together), drawn(alone), column) for _ in range(400)])
    assert np.var(redraw(together, alone, column)) == pytest.approx(reference, rel=0.35)


@pytest.mark.parametrize("test", ["local", "site"])
def test_errors_of_two_groups_of_one_row_do_not_cancel(test):
    changes = {"groups": {"a": "north", "b": "south"}}
    one = record("fedavg", 0, [0.6], values=(0.6, 0.6)).model_copy(update=changes)
    north, south = (redraw(one, None, f"average[{name}]", test) for name in ("north", "south"))
    assert np.var(north - south) == pytest.approx(2 * 0.6 * 0.4 / 100, rel=0.15)


def test_errors_of_the_best_and_of_the_last_round_do_not_cancel():
    one = record("fedavg", 0, [0.6], values=(0.6, 0.6))
    best, last = (redraw(one, None, column) for column in ("best_average", "average"))
    assert np.var(best - last) == pytest.approx(0.6 * 0.4 / 100, rel=0.15)


@pytest.mark.parametrize("column", ["std", "cf"])
def test_personal_models_on_one_test_set_have_the_larger_of_both_errors(column):
    """Errors that rise and fall together leave a deviation and a correlation as they are."""
    sizes = dict.fromkeys("abc", 200)
    alone, together = (
        record(name, 0, [0.5]).model_copy(
            update={"values": dict(zip("abc", values, strict=True)), "test_sizes": sizes}
        )
        for name, values in (("standalone", (0.5, 0.6, 0.8)), ("ditto", (0.7, 0.65, 0.9)))
    )
    own, shared = (np.var(redraw(together, alone, column, test)) for test in ("local", "global"))
    assert shared == pytest.approx(own, rel=0.2)


def test_fairness_of_one_model_has_the_error_of_what_clients_have_after_training():
    sizes = dict.fromkeys("abc", 200)
    alone = record("standalone", 0, [0.5]).model_copy(
        update={"values": {"a": 0.5, "b": 0.6, "c": 0.8}, "test_sizes": sizes}
    )
    one = alone.model_copy(
        update={
            "run": "fedavg-0",
            "values": dict.fromkeys("abc", 0.8),
            "after_local": {"a": 0.7, "b": 0.65, "c": 0.9},
        }
    )
    assert np.var(redraw(one, alone, "cf", "global")) > 1
    without = one.model_copy(update={"after_local": {}})
    assert redraw(without, alone, "cf", "global") is None


def test_a_study_without_a_paper_is_not_said_to_be_run_at_the_papers_scale(tmp_path):
    assert "Run at scale `paper`: 2 of 4 runs" in describe_runs(
        StudyTable(study(tmp_path), "paper", RECORDS[:2])
    )
    source = {"source": {"paper": "A paper", "table": "Table 1"}}
    assert "at the paper's own scale" in describe_runs(
        StudyTable(study(tmp_path, **source), "paper", RECORDS)
    )


def test_a_figure_names_printed_numbers_only_where_there_are_some(tmp_path):
    text = pictures_of(StudyTable(study(tmp_path), "paper", RECORDS))["bars-average"].text
    assert "paper prints" not in text
    printed = {"printed": {"even": {"average": {"fedavg": 80.0}}}}
    text = pictures_of(StudyTable(study(tmp_path, **printed), "paper", RECORDS))["bars-average"]
    assert "diamonds what the paper prints" in text.text
