"""What happens before a run begins: the name of its folder, its configuration as text, its cluster."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from equipoise.experiment import ConfigurationError, Experiment
from equipoise.simulate import configuration, fresh_folder, on_cluster, tell
from equipoise.validation import safe_yaml


def test_a_new_folder_is_named_by_what_is_run_and_never_one_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Then:
        @staticmethod
        def now() -> Any:
            return SimpleNamespace(strftime=lambda form: "now")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("equipoise.simulate.datetime", Then)
    wanted = Experiment(data={"name": "some/where/mine"}, method="fedprox", seed=3)
    names = []
    for _ in range(3):
        folder = fresh_folder(wanted)
        folder.mkdir(parents=True)
        names.append(folder)
    assert names == [Path("runs") / f"now-fedprox-mine-s3{more}" for more in ("", "-2", "-3")]


def test_an_experiment_that_is_too_long_to_be_read_again_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = configuration(Experiment())
    assert "rounds: 50" in text and text.index("data:") < text.index("model:") < text.index(
        "rounds:"
    )
    for most, fits in ((len(text.encode()), True), (len(text.encode()) - 1, False)):
        monkeypatch.setattr("equipoise.validation.safe_yaml.MOST_BYTES", most)
        with (
            nullcontext()
            if fits
            else pytest.raises(
                ConfigurationError, match=r"at most 1 MB, got one of 0.0 MB; shorten its lists"
            )
        ):
            configuration(Experiment())


def test_an_experiment_that_is_no_plain_yaml_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(text: str, where: str) -> None:
        raise safe_yaml.Unreadable(f"{where} is odd")

    monkeypatch.setattr("equipoise.validation.safe_yaml.parsed", refused)
    with pytest.raises(ConfigurationError, match="this experiment, written to a file, is odd"):
        configuration(Experiment())


@pytest.mark.parametrize(
    ("wanted", "asked", "said"),
    [
        ({"model": "cnn"}, "auto", "model: cnn, the default for images of 1x28x28"), ({"model": "cnn"}, "cnn", ""), ({"model": "mlp"}, "auto", ""),
        ({"model": "cnn", "models": {"model": "mlp"}}, "auto", ""),
    ],
)  # fmt: skip
def test_a_chosen_model_is_told_where_nobody_watches(
    wanted: dict[str, Any], asked: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tell(Experiment(**wanted), (1, 28, 28), asked)
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(said) and bool(err) == bool(said)


def test_a_cluster_is_named_or_there_is_none() -> None:
    assert on_cluster(None, True) is None
    made = on_cluster("h:1", True)
    assert made is not None and made.keywords == {"address": "h:1", "trust_network": True}  # type: ignore[attr-defined]
