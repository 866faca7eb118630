"""The registry: what packages, notebooks and files add, who finds it, and what is refused."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional

import equipoise as eq
from equipoise.data.federation import Parts
from equipoise.data.partitions import Partition
from equipoise.experiment import ConfigurationError, experiment, load
from equipoise.extensions import REGISTRIES
from equipoise.losses.registry import SupervisedLoss
from equipoise.metrics import Metric
from equipoise.storage.store import RunError
from equipoise.validation.imports import NotAllowed
from equipoise.validation.names import UnknownName
from tests.helpers.packages import installed, write_package
from tests.helpers.runs import folder_of, played, settings, sites
from tests.helpers.terminal import Terminal
from tests.helpers.terminal import equipoise as equipoise

KINDS = list(REGISTRIES)
FIRST = {
    "method": "fedavg",
    "model": "mlp",
    "metric": "accuracy",
    "dataset": "digits",
    "partition": "iid",
    "loss": "focal",
}
MODULE = """
import equipoise as eq
from torch import nn
from torch.nn import functional
from equipoise.data.partitions import Partition
from equipoise.data.federation import Parts
import numpy as np

def doubled(outputs, targets):
    return 2 * functional.cross_entropy(outputs, targets)

def halves(pool, clients, seed):
    return Partition(Parts.of(np.array_split(np.arange(len(pool)), clients)))

@eq.register("metric", higher_is_better=True, unit="%")
def zeros(outputs, y):
    return float((y == 0).mean())
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    before = {kind: dict(registry.registered) for kind, registry in REGISTRIES.items()}
    yield
    for kind, registry in REGISTRIES.items():
        registry.registered.clear()
        registry.registered.update(before[kind])


def top(outputs: Any, y: Any) -> float:
    return float((outputs.argmax(1) == y).mean())


# Names.


@pytest.mark.parametrize("kind", KINDS)
def test_an_unknown_name_is_refused_with_the_nearest_one(kind: str) -> None:
    name = FIRST[kind]
    with pytest.raises(UnknownName, match=f"did you mean '{name}'"):
        REGISTRIES[kind].find(f"{name}x")
    assert name in REGISTRIES[kind].names() and REGISTRIES[kind].source(name) == "built in"


@pytest.mark.parametrize("kind", KINDS)
def test_a_built_in_name_is_never_replaced(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, name = REGISTRIES[kind], FIRST[kind]
    before = registry.find(name)
    with pytest.raises(ValueError, match=f"{name}.*built in"):
        registry.add(name, before)
    points = {registry.group: {name: "absent_package:thing"}}
    with installed(monkeypatch, tmp_path, "rude", {}, points):
        assert registry.find(name) is before and registry.names().count(name) == 1


@pytest.mark.parametrize("wrong", ["", "a:b", "a b", "-a", "a" * 65, 3, "ä/b"])
def test_what_cannot_be_a_name_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="name"):
        REGISTRIES["loss"].add(wrong, SupervisedLoss("x", functional.cross_entropy))


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_package_is_named_and_hides_nothing_else(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = REGISTRIES[kind]
    files = {"broken_addon.py": "raise RuntimeError('out of order')"}
    points = {registry.group: {"odd": "broken_addon:thing", "gone": "no_such_module:thing"}}
    with installed(monkeypatch, tmp_path, "broken", files, points):
        entries, broken = registry.listed()
        assert set(broken) == {"odd", "gone"} and FIRST[kind] in entries
        with pytest.raises(UnknownName, match=r"odd.*broken 1.0.*out of order.*uninstall"):
            registry.find("odd")


def test_a_name_of_two_packages_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "equipoise.losses"
    write_package(tmp_path / "b", "second", {}, {group: {"doubled": "other_addon:doubled"}})
    monkeypatch.syspath_prepend(str(tmp_path / "b"))
    points = {group: {"doubled": "first_addon:doubled"}}
    with installed(monkeypatch, tmp_path / "a", "first", {"first_addon.py": MODULE}, points):
        with pytest.raises(UnknownName, match=r"first 1.0.*second 1.0|second 1.0.*first 1.0"):
            REGISTRIES["loss"].find("doubled")
        assert REGISTRIES["loss"].find("first_addon:doubled").name == "doubled"


def test_a_package_that_announces_a_module_adds_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Earlier versions needed such an entry point; it only allows files to name code there."""
    with installed(
        monkeypatch, tmp_path, "old", {}, {"equipoise.methods": {"old": "old_addon.methods"}}
    ):
        assert "old" not in REGISTRIES["method"].names()
        REGISTRIES["method"].listed()


# The decorator.


def test_the_decorator_knows_objects_and_asks_for_the_kind_of_a_function() -> None:
    def net(task: Any) -> torch.nn.Module:
        return torch.nn.Linear(4, task.outputs)

    assert eq.register("model")(net) is net and "net" in REGISTRIES["model"].names()
    metric = Metric("best", top, True, "%")
    assert eq.register(metric) is metric and REGISTRIES["metric"].find("best") is metric
    with pytest.raises(ValueError, match=r"@eq.register\('partition'\)"):
        eq.register(net)
    with pytest.raises(UnknownName, match="did you mean 'metric'"):
        eq.register("metrik")
    with pytest.raises(ValueError, match="higher_is_better"):
        eq.register("metric", unit="%")(top)
    with pytest.raises(UnknownName, match="did you mean 'unit'"):
        eq.register("metric", higher_is_better=True, units="%")(top)
    with pytest.raises(ValueError, match="unit: expected '%' or ''"):
        eq.register("metric", higher_is_better=True, unit="kg")(top)
    with pytest.raises(ValueError, match=r"\(pool, clients, seed"):
        eq.register("partition")(lambda pool: pool)
    with pytest.raises(ValueError, match="annotated as float, int or str"):
        eq.register("partition")(lambda pool, clients, seed, *, size=1: pool)


def test_a_method_is_registered_as_before() -> None:
    @eq.register
    @dataclass(frozen=True)
    class Quiet(eq.Method):
        """Mine."""

    assert eq.methods.find("quiet") is Quiet and "quiet" in eq.methods.names()


# Objects in Python, and where they can go.


def test_objects_that_cannot_travel_run_here_and_are_refused_elsewhere(tmp_path: Path) -> None:
    def turns(pool: Any, clients: int, seed: int) -> Partition:
        return Partition(Parts.by_owner(np.arange(len(pool)) % clients, clients))

    def doubled(outputs: Any, targets: Any) -> Any:
        return 2 * functional.cross_entropy(outputs, targets)

    eq.register("loss")(doubled)
    objects: list[tuple[dict[str, Any], str]] = [
        ({"data": {"partition": turns}}, "partition"),
        ({"training": {"loss": doubled}}, "loss doubled"),
        ({"training": {"loss": "doubled"}}, "loss doubled"),
        ({"evaluation": {"metrics": [Metric("best", lambda z, y: 0.5, True)]}}, "metric best"),
    ]
    base = {"data": {"name": "digits", "clients": 3, "samples": 90}, "rounds": 1}
    for k, (more, what) in enumerate(objects):
        wanted = {**base, **more, "data": {**base["data"], **more.get("data", {})}}  # type: ignore[dict-item]
        with pytest.raises(ConfigurationError, match=f"workers: expected 0.*{what}"):
            eq.run({**wanted, "workers": 2}, tmp_path / "no")
        run = eq.run({**wanted, "workers": 0}, tmp_path / f"run{k}")
        assert len(run.clients) == 3 and eq.Run(run.folder).main_metric
        reason = run.store.meta("not portable")
        assert what.split()[0] in reason


def test_what_a_module_holds_travels_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(monkeypatch, tmp_path / "site", "plain", {"plain_addon.py": MODULE}, {}):
        import plain_addon  # type: ignore[import-not-found]

        given = {
            "data": {
                "name": "digits",
                "clients": 3,
                "samples": 90,
                "partition": plain_addon.halves,
            },
            "training": {"loss": plain_addon.doubled},
            # the decorator in the module gave it this name
            "evaluation": {"metrics": ["zeros", "loss"], "main": "zeros"},
            "rounds": 1,
        }
        spec = eq.Experiment(**given).to_spec()
        assert spec["data"]["partition"] == "plain_addon:halves"
        assert spec["training"]["loss"] == "plain_addon:doubled"
        assert spec["evaluation"]["metrics"] == ["plain_addon:zeros", "loss"]
        here = eq.run({**given, "workers": 0}, tmp_path / "here")
        there = eq.run({**given, "workers": 2}, tmp_path / "there")
        assert here.final("loss") == there.final("loss") and here.final() == there.final()
        assert there.main_metric == "zeros" and there.store.meta("not portable") is None


def test_two_experiments_of_one_process_keep_their_own_metric(tmp_path: Path) -> None:
    made = [
        eq.Experiment(
            **settings("fedavg", rounds=1, evaluation={"main": Metric("number", value, True)}),
            dataset=eq.from_sites(sites()),
        )
        for value in (lambda z, y: 1.0, lambda z, y: 2.0)
    ]
    for wanted, value in zip(made, (1.0, 2.0), strict=True):
        run = eq.run(wanted, tmp_path / str(value))
        assert set(run.final().values()) == {value}


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"metrics": [top]}, r"got the function 'top'; make it one with @eq.register"),
        ({"metrics": [3]}, "expected a name or a Metric, got 3"),
        ({"metrics": [Metric("accuracy", top, True)]}, "'accuracy' is built in"),
        (
            {"metrics": [Metric("a", top, True), Metric("a", top, False)]},
            "two that are called 'a'",
        ),
        (
            {"metrics": [Metric("a", top, True)], "main": Metric("a", top, False)},
            "evaluation.main.*called 'a'",
        ),
        ({"metrics": ["tests.core.test_extensions:top"]}, "expected a Metric"),
    ],
)
def test_what_is_no_metric_is_refused(evaluation: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        eq.Experiment(evaluation=evaluation)


def test_a_metric_has_the_name_that_it_is_asked_for_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from equipoise.metrics import Metric\nother = Metric('name', max, True)\n"
    with (
        installed(monkeypatch, tmp_path, "misnamed", {"misnamed_addon.py": text}, {}),
        pytest.raises(ConfigurationError, match="calls itself 'name'"),
    ):
        eq.Experiment(evaluation={"metrics": ["misnamed_addon:other"]})


# Files.


@pytest.mark.parametrize(
    "config",
    [
        {"evaluation": {"metrics": ["strange_addon:zeros"]}},
        {"evaluation": {"main": "strange_addon:zeros"}},
        {"training": {"loss": "strange_addon:doubled"}},
        {"training": {"loss": {"name": "strange_addon:doubled"}}},
        {"data": {"partition": "strange_addon:halves"}},
        {"data": {"partition": "strange_addon:halves:2"}},
        {"training": {"loss": "os:system"}},
    ],
)
def test_a_file_runs_no_code_that_was_not_allowed(
    config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"from pathlib import Path\nPath({str(tmp_path / 'imported')!r}).touch()\n{MODULE}"
    with installed(monkeypatch, tmp_path / "site", "strange", {"strange_addon.py": text}, {}):
        file = tmp_path / "e.yaml"
        file.write_text(yaml.safe_dump(config))
        with pytest.raises(ConfigurationError, match="--allow-import"):
            experiment(load(file))
        assert not (tmp_path / "imported").exists()


def test_a_refused_metric_is_not_also_called_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`main` is the short name of a listed metric that a file may not import."""
    with installed(monkeypatch, tmp_path / "site", "strange", {"strange_addon.py": MODULE}, {}):
        file = tmp_path / "e.yaml"
        evaluation = {"metrics": ["accuracy", "strange_addon:zeros"], "main": "zeros"}
        file.write_text(yaml.safe_dump({"evaluation": evaluation, "rounds": 0}))
        with pytest.raises(ConfigurationError, match="--allow-import strange_addon") as error:
            experiment(load(file))
        assert "unknown metric" not in str(error.value)
        assert "rounds: expected" in str(error.value)  # an independent mistake is still named


def test_a_function_that_an_allowed_module_imported_is_not_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.validation.imports import permitted

    text = "from os import system\n" + MODULE
    with installed(monkeypatch, tmp_path / "site", "strange", {"strange_addon.py": text}, {}):
        file = tmp_path / "e.yaml"
        for loss, refused in (("strange_addon:system", True), ("strange_addon:doubled", False)):
            file.write_text(yaml.safe_dump({"training": {"loss": loss}}))
            config = load(file)
            if refused:
                with pytest.raises(ConfigurationError, match="was not allowed"):
                    experiment(config, permitted(config, ["strange_addon"]))
            else:
                assert experiment(config, permitted(config, ["strange_addon"])).training.loss
    assert issubclass(NotAllowed, ValueError)


def test_a_partition_that_is_typed_is_the_users(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with installed(monkeypatch, tmp_path / "site", "plain", {"plain_addon.py": MODULE}, {}):
        folder = folder_of(tmp_path / "sites", sites())
        words = ["run", "--data", folder, "--dry-run", "--partition", "plain_addon:halves"]
        answer = equipoise(*words)
        assert answer.code == 0, answer.err
        answer = equipoise(*words[:-1], "plain_addon:halves:3")
        assert answer.code == 2 and "more values than" in answer.err


# Losses.


def test_label_smoothing_is_cross_entropy_with_smoothed_labels() -> None:
    draw = torch.Generator().manual_seed(0)
    z, y = torch.randn(20, 4, generator=draw), torch.randint(4, (20,), generator=draw)
    target = torch.full((20, 4), 0.3 / 4)
    target[torch.arange(20), y] += 0.7
    expected = -(target * torch.log_softmax(z, 1)).sum(1).mean()
    found = REGISTRIES["loss"].find("label_smoothing")(z, y, smoothing=0.3)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("loss", "words"),
    [
        ("focl", "did you mean 'focal'"),
        ({"name": "label_smoothing", "smoothing": 1.5}, "smoothing.*less than 1, got 1.5"),
        ({"name": "label_smoothing", "smooth": 0.1}, "did you mean 'smoothing'"),
        ({"smoothing": 0.1}, "expected a name"),
        (7, "expected a name"),
    ],
)
def test_a_loss_that_cannot_be_is_refused(loss: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"training.loss.*{words}"):
        eq.Experiment(training={"loss": loss})


def test_a_loss_is_tried_before_anything_is_written(tmp_path: Path) -> None:
    wrong = {
        "shape": lambda z, y: functional.cross_entropy(z, y, reduction="none"),
        "gradient": lambda z, y: functional.cross_entropy(z.detach(), y),
        "number": lambda z, y: 1.0,
        "error": lambda z, y: z @ y,
    }
    for what, function in wrong.items():
        with pytest.raises(ValueError, match=r"training.loss: "):
            played(settings("fedavg", training={"loss": function}), tmp_path / what)
        assert not (tmp_path / what).exists()
    x = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    wanted = {"dataset": eq.from_arrays(x, x[:, 0] * 1.5), "data": {"clients": 2}, "rounds": 1}
    with pytest.raises(ValueError, match="training.loss: focal needs classes.*regression"):
        eq.run({**wanted, "training": {"loss": "focal"}}, tmp_path / "focal")


def test_a_method_with_an_objective_of_its_own_refuses_a_loss() -> None:
    @dataclass(frozen=True)
    class Unsupervised(eq.Method):
        """Minimises something else."""

        own_objective: ClassVar[bool] = True

    assert eq.Experiment(method=Unsupervised()).training.loss == "default"
    with pytest.raises(ConfigurationError, match="training.loss.*objective of its own.*'focal'"):
        eq.Experiment(method=Unsupervised(), training={"loss": "focal"})


# Partitions.


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (None, "to return a Partition, got None"),
        (Partition(Parts.of([np.array([0, 10**6])])), "positions from 0 to"),
        (Partition(Parts.of([np.array([0])]), ids=("a", "b")), "one id per client, got 2 for 1"),
    ],
)
def test_what_is_no_partition_of_the_pool_is_refused(
    result: Any, words: str, tmp_path: Path
) -> None:
    data = {"name": "digits", "samples": 60, "partition": lambda pool, clients, seed: result}
    with pytest.raises(ValueError, match=words):
        eq.run({"data": data, "rounds": 1, "workers": 0}, tmp_path / "run")


# Runs of others.


def test_facts_of_a_metric_in_a_strangers_run_are_checked(tmp_path: Path) -> None:
    run = played(settings("fedavg", rounds=1), tmp_path / "run")
    folder = run.folder
    for wrong in (
        {"evil": {"higher_is_better": "yes", "unit": "%", "needs": "classes"}},
        {"evil": {"higher_is_better": True, "unit": "<script>", "needs": "classes"}},
        {"evil name": {"higher_is_better": True, "unit": "%", "needs": "classes"}},
        {"evil": {"higher_is_better": True, "unit": "%", "needs": "classes", "function": "os:x"}},
        ["evil"],
    ):
        code = (
            'import json, sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute("insert or '
            "replace into meta values ('metrics', ?)\", [sys.argv[2]]); d.commit()"
        )
        subprocess.run(
            [sys.executable, "-c", code, str(folder / "run.db"), yaml_json(wrong)], check=True
        )
        with pytest.raises(RunError, match="not written by Equipoise"):
            eq.Run(folder)


def yaml_json(value: Any) -> str:
    import json

    return json.dumps(value)


# Commands.


def test_a_command_that_cannot_be_loaded_breaks_nothing_else(
    equipoise: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "command_addon.py": "import typer\napp = typer.Typer()\n@app.command()\ndef a():\n    print('one')\n@app.command()\ndef b():\n    print('two')\nnumber = 3\n",
        "failing_addon.py": "raise SystemExit('not today')\n",
    }
    points = {
        "equipoise.commands": {
            "several": "command_addon:app",
            "odd": "command_addon:number",
            "failing": "failing_addon:app",
            "run": "command_addon:app",
        }
    }
    with installed(monkeypatch, tmp_path, "commands", files, points):
        helped = equipoise("--help")
        assert helped.code == 0 and "several" in helped.out and "not today" in helped.out
        assert equipoise("several", "b").out.strip() == "two"
        assert "YAML file" in equipoise("run", "--help").out
        for name, reason in (("failing", "not today"), ("odd", "expected a typer app")):
            answer = equipoise(name, "--any", "words")
            assert answer.code == 2 and reason in answer.err and "uninstall" in answer.err


def test_a_model_that_fails_for_some_samples_does_not_break_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.models.listing import listed

    text = (
        "from torch import nn\ndef third(task):\n    return nn.Sequential(nn.Flatten(), "
        "nn.Linear(task.shape[2] * 784 // task.shape[2], 10))\n"
    )
    points = {"equipoise.models": {"third": "third_addon:third"}}
    with installed(monkeypatch, tmp_path, "thirds", {"third_addon.py": text}, points):
        (row,) = listed(["third"])
        assert set(row["parameters"]) == {"1x28x28"} and row["source"] == "thirds 1.0"


def test_a_metric_that_is_here_goes_before_what_a_run_tells_of_it() -> None:
    from equipoise.metrics.registry import find, remember

    remember("told_of", {"higher_is_better": True, "unit": "%", "needs": "classes"})
    assert find("told_of").higher_is_better
    eq.register(Metric("told_of", top, False))
    assert find("told_of").lower_is_better
    remember("accuracy", {"higher_is_better": False, "unit": "", "needs": "values"})
    assert find("accuracy").higher_is_better
