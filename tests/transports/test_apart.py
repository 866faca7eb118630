"""Sites behind messages of bytes: the same bits as in process, and sites that leave."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise import simulate
from equipoise.experiment import ConfigurationError, experiment
from equipoise.records import Up
from equipoise.runs import Run, read_result
from equipoise.runs.notes import notes
from equipoise.runtime.messages import Reply, Request
from equipoise.session import Session, server_data
from equipoise.site.messages import packed, unpacked
from equipoise.site.settings import AUDIT
from equipoise.storage.store import RunError
from equipoise.storage.tables import RoundRecord
from equipoise.transports.apart import Apart
from equipoise.watch.progress import progress_of
from tests.helpers.answers import CommandLine, one_sentence
from tests.helpers.apart_sites import (
    Network,
    apart_config,
    network_of,
    resume_apart,
    run_apart,
    run_joined,
    validation_of,
)
from tests.helpers.callbacks import Calling
from tests.helpers.runs import QUICK, assert_same, each_method, everything, same_run, sites

COMPOSED: dict[str, Mapping[str, Any]] = {
    "companion": {"name": "fedavg", "companion": {"name": "kdia", "lambda_gen": 0.0}},
    "inputs and weights": {
        "name": "fedprox",
        "inputs": {"name": "fedrdn"},
        "weights": {"name": "feddisco"},
    },
    "finish": {"name": "fedprox", "finish": {"name": "poise"}},
    "audit": {"name": AUDIT, "dimensions": 3},
}


def data_of_server(config: Mapping[str, Any]) -> Any:
    needs = experiment(config).build_method().needs
    return validation_of(config) if "validation" in needs else None


def assert_same_apart(config: Mapping[str, Any], tmp_path: Path, **more: Any) -> Run:
    network = network_of(tmp_path, **more)
    here = run_joined(config, tmp_path / "here")
    there = run_apart(config, tmp_path / "there", network.transport(), data_of_server(config))
    if config["method"]["name"] == AUDIT:
        assert_same(everything(here), everything(there))
    else:
        same_run(here, there, network.states(there))
    return there


@pytest.mark.parametrize("method", each_method())
@pytest.mark.quick_cases("fedavg", "scaffold", "poise")
def test_every_method_runs_alike_at_sites_and_in_process(method: str, tmp_path: Path) -> None:
    spec = {"name": method, **QUICK.get(method, {})}
    assert_same_apart(apart_config(tmp_path, spec), tmp_path)


@pytest.mark.parametrize("composed", COMPOSED)
def test_compositions_and_the_audit_run_alike_at_sites_and_in_process(
    composed: str, tmp_path: Path
) -> None:
    more = {"evaluation": {"every": 0, "splits": []}} if composed == "audit" else {}
    assert_same_apart(apart_config(tmp_path, dict(COMPOSED[composed]), **more), tmp_path)


def test_settings_that_name_other_clients_and_faults_do_not_reach_sites(tmp_path: Path) -> None:
    config = apart_config(
        tmp_path,
        "fedavg",
        evaluation={"no_curves": ["bo"], "after_local": True, "distances": True},
        participation={"script": {1: ["ada", "bo"], 2: ["bo", "cy"]}},
        faults={"script": [{"round": 1, "client": "bo", "kind": "kill"}]},
        memory=1,
    )
    assert_same_apart({**config, "method": {"name": "fedavg"}}, tmp_path)


# Sites that are away.


class Leaving(Apart):
    """A transport whose site bo is away for some exchanges, judged by their first request."""

    def __init__(self, network: Network, is_away: Any) -> None:
        super().__init__(network.transport().sites)
        self.is_away = is_away

    def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
        self.away = {"bo"} if requests and self.is_away(requests[0]) else set()
        return super().exchange(requests, deadline)


def at_evaluation(round: int) -> Any:
    return lambda request: request.exchange == 0 and request.round == round


def replayed(run: Run, config: Mapping[str, Any], out: Path) -> Run:
    """Repeat a run in process, from the configuration that its record gives."""
    script = run.replay()
    assert script["data"]["apart"] is True
    return simulate.run(script, out, quiet=True)


class AwayInRounds(Apart):
    """A transport whose site bo cannot be reached in some rounds, and is known to be away."""

    def __init__(self, network: Network, rounds: tuple[int, ...]) -> None:
        super().__init__(network.transport().sites)
        self.rounds = rounds
        self.sampled = 0

    def present(self) -> list[str]:
        if self._job is not None:
            self.sampled += 1
        # The first call after the description opens the sites.
        self.away = {"bo"} if self.sampled - 1 in self.rounds else set()
        return list(super().present())


def test_a_site_away_in_two_rounds_is_not_sampled_and_comes_back(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold", rounds=4, evaluation={"every": 0})
    network = network_of(tmp_path)
    run = run_apart(config, tmp_path / "run", AwayInRounds(network, (2, 3)))
    assert ["bo" in row["cohort"] for row in run.rounds()] == [True, False, False, True]
    again = replayed(run, config, tmp_path / "again")
    assert_same(everything(run, network.states(run)), everything(again))
    assert run.table() == again.table()


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_a_site_away_at_the_last_evaluation_is_evaluated_at_resume(
    method: str, tmp_path: Path
) -> None:
    config = apart_config(tmp_path, method)
    network = network_of(tmp_path)
    run = run_apart(config, tmp_path / "run", Leaving(network, at_evaluation(2)))
    assert set(run.final()) == {"ada", "cy", "di"} and read_result(run).unevaluated == ["bo"]
    again = replayed(run, config, tmp_path / "again")
    assert run.table() == again.table()
    run.store.close()
    late = resume_apart(tmp_path / "run", network.transport())
    assert late.final() == {**run_joined(config, tmp_path / "whole").final()}
    again.store.close()
    assert simulate.resume(again.folder).table() == late.table(), "a replay is resumed likewise"


def test_a_site_away_at_the_finish_makes_its_model_at_resume(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "poise")
    network = network_of(tmp_path)
    run = run_apart(config, tmp_path / "run", Leaving(network, lambda request: request.round == 3))
    assert run.store.missed(2) == ["bo"] and "bo" not in run.final()
    run.store.close()
    late = resume_apart(tmp_path / "run", network.transport())
    whole = run_joined(config, tmp_path / "whole")
    assert late.final() == {client: whole.final()[client] for client in late.final()}
    assert set(late.final()) == set(whole.final())


def test_texts_about_a_run_of_sites_advise_a_command_that_can_resume_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = apart_config(tmp_path, "fedavg")
    folder = tmp_path / "run"
    command = f"`equipoise resume {folder} --network KIT`"
    network = network_of(tmp_path)
    stop = Calling(on_round=lambda record: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt, match=re.escape(command)):
        run_apart(config, folder, network.transport(), callbacks=stop)
    assert command in progress_of(Run(folder)).words
    equipoise = CommandLine(capfd, monkeypatch)
    assert equipoise("report", folder, "--out", tmp_path / "page.html")[0] == 0
    assert "--network KIT" in (tmp_path / "page.html").read_text()
    assert command in one_sentence(equipoise("resume", folder))
    run = resume_apart(folder, Leaving(network, at_evaluation(2)))
    assert any(command in note for note in notes(read_result(run)))
    run.store.close()
    with pytest.raises(RunError, match=re.escape(command)):
        resume_apart(folder, Leaving(network, at_evaluation(2)))


def test_a_run_resumes_while_a_site_is_away(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold", rounds=3)
    network = network_of(tmp_path)
    transport = Leaving(network, lambda request: False)
    with pytest.raises(RunError, match="power cut"):
        run_apart(config, tmp_path / "run", transport, callbacks=cut_after(2))
    away = network.transport()
    away.away = {"bo"}
    run = resume_apart(tmp_path / "run", away)
    assert run.status == "finished" and run.rounds()[2]["cohort"] == ["ada", "cy", "di"]
    again = replayed(run, config, tmp_path / "again")
    assert_same(everything(run, network.states(run)), everything(again))
    run.store.close()
    back = resume_apart(tmp_path / "run", network.transport())
    assert set(back.final()) == {"ada", "bo", "cy", "di"}


def cut_after(round: int) -> Any:
    def cut(record: RoundRecord) -> None:
        if record.round == round:
            raise RunError("power cut")

    return Calling(on_round=cut)


def test_a_resumed_run_equals_one_without_a_stop(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold", rounds=3)
    network = network_of(tmp_path)
    with pytest.raises(RunError, match="power cut"):
        run_apart(config, tmp_path / "run", network.transport(), callbacks=cut_after(2))
    run = resume_apart(tmp_path / "run", network.transport())
    same_run(run_joined(config, tmp_path / "here"), run, network.states(run))


def test_a_run_that_goes_back_equals_one_without_a_stop(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=3)
    network = network_of(tmp_path)
    transport = network.transport()
    with pytest.raises(RunError, match="power cut"):
        run_apart(config, tmp_path / "run", transport, callbacks=cut_after(2))
    run = resume_apart(tmp_path / "run", transport, from_round=1)
    same_run(run_joined(config, tmp_path / "here"), run, network.states(run))


def test_a_site_that_lost_its_state_is_out_of_the_round(tmp_path: Path) -> None:
    network = network_of(tmp_path)

    class Forgetful(Apart):
        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            first: Request = requests[0]
            if (first.round, first.exchange) == (2, 1):
                for states in (network.folder / "bo").glob("*/states"):
                    shutil.rmtree(states)
            return super().exchange(requests, deadline)

    config = apart_config(tmp_path, "scaffold", evaluation={"every": 0, "clients": "cohort"})
    run = run_apart(config, tmp_path / "run", Forgetful(network.transport().sites))
    (row,) = run.rejected()
    assert (row["round"], row["client"], row["reason"]) == (2, "bo", "no-state")


def test_a_site_that_comes_back_with_other_data_is_out_of_the_round(tmp_path: Path) -> None:
    network = network_of(tmp_path)

    class Changed(Apart):
        def exchange(self, requests: Any, deadline: float | None = None) -> list[Reply]:
            first: Request = requests[0]
            if (first.round, first.exchange) == (2, 1):
                x, y = sites({"bo": 13}, seed=9)["bo"]
                np.savez(network.data / "bo.npz", x=x, y=y)
                self.sites["bo"] = network.site("bo")
            return super().exchange(requests, deadline)

    config = apart_config(tmp_path, "fedavg", evaluation={"every": 0, "clients": "cohort"})
    run = run_apart(config, tmp_path / "run", Changed(network.transport().sites))
    (row,) = run.rejected()
    assert (row["round"], row["client"]) == (2, "bo") and "data have changed" in row["reason"]


def test_commands_read_the_run_of_a_session(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = apart_config(tmp_path, "ditto")
    run_apart(config, tmp_path / "run", network_of(tmp_path).transport()).store.close()
    equipoise = CommandLine(capfd, monkeypatch)
    assert equipoise("show", tmp_path / "run")[0] == 0
    assert equipoise("report", tmp_path / "run", "--out", tmp_path / "page.html")[0] == 0
    np.savez(tmp_path / "new.npz", x=sites()["bo"][0])
    predict = ("predict", tmp_path / "run", tmp_path / "new.npz", "--model")
    assert equipoise(*predict, "global")[0] == 0
    assert "own disk" in one_sentence(equipoise(*predict, "personal", "--client", "bo"))


# What the server stores.


def test_the_store_of_a_session_has_no_statistics_of_a_site(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", **TABLES)
    folder = tmp_path / "data"
    for file in folder.glob("*.npz"):
        file.unlink()
    rows = np.random.default_rng(0).normal(50, 3, size=(30, 2)).round(3)
    for name in ("ada", "bo"):
        lines = [f"{a},{b},{'yes' if a > 50 else 'no'}" for a, b in rows]
        (folder / f"{name}.csv").write_text("age,dose,sick\n" + "\n".join(lines) + "\n")
    network = Network(tmp_path / "sites", folder, ending=".csv")
    run = run_apart(config, tmp_path / "run", network.transport())
    recipe = run.store.meta("recipe")
    assert recipe["clients"] == {} and recipe["shared"] is None
    assert recipe["schema"]["label"] == "sick" and recipe["scaling"] == "client"
    stored = (tmp_path / "run" / "run.db").read_bytes()
    means = json.dumps([round(float(value), 4) for value in rows.mean(0)])
    assert means.encode() not in stored and b"notes" not in stored
    assert run.store.meta("roster")["classes"]["train"] == {"ada": 2, "bo": 2}
    joined = run_joined(config, tmp_path / "here")
    assert_same(everything(joined), everything(run, network.states(run)))


TABLES: dict[str, Any] = {
    "models": {},
    "model": "auto",
    "data": {
        "schema": {
            "label": "sick",
            "classes": ["no", "yes"],
            "columns": [
                {"name": "age", "kind": "number", "gaps": False},
                {"name": "dose", "kind": "number", "gaps": False},
            ],
        }
    },
}


def test_files_at_the_server_serve_a_method_that_needs_them(tmp_path: Path) -> None:
    config = apart_config(tmp_path, {"name": "fedsac", **QUICK["fedsac"]})
    x, y = sites({"own": 30}, seed=3)["own"]
    np.savez(tmp_path / "validation.npz", x=x, y=y)
    data = server_data(experiment(config), tmp_path / "validation.npz", tmp_path / "validation.npz")
    assert data.validation is not None and np.allclose(data.validation.x.numpy(), x)
    assert data.validation.y.tolist() == y.tolist()
    run = run_apart(config, tmp_path / "run", network_of(tmp_path).transport(), data)
    assert run.status == "finished"


def test_a_test_file_at_the_server_evaluates_the_common_model(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg")
    x, y = sites({"own": 30}, seed=3)["own"]
    np.savez(tmp_path / "test.npz", x=x, y=y)
    data = server_data(experiment(config), test=tmp_path / "test.npz")
    network = network_of(tmp_path)
    transport = Leaving(network, lambda request: request.step == "@handed")
    run = run_apart(config, tmp_path / "run", transport, data)
    values = run.table(client="all", split="shared", metric="accuracy")
    assert {row["round"] for row in values} == {1, 2}


class Liar:
    """A site that answers every step with bytes, or with entries that name the right request."""

    def __init__(self, site: Any, lie: bytes | dict[str, Any]) -> None:
        self.site = site
        self.lie = lie

    def answer(self, data: bytes) -> bytes:
        honest = bytes(self.site.answer(data))
        if unpacked(data)["kind"] != "perform":
            return honest
        if isinstance(self.lie, bytes):
            return self.lie
        return packed({**self.lie, "answers": unpacked(honest)["answers"]})


REPLY = {"client": "bo", "seconds": 0.1}


@pytest.mark.parametrize(
    "lie",
    [
        b"",
        b"hello",
        packed({"code": "", "reply": REPLY, "up": Up(model=1)}),
        {"code": "the disk of patient 4711 is full"},
        {"code": 3},
        {"code": ""},
        {"code": "", "reply": REPLY, "up": 3},
        {"code": "", "reply": {**REPLY, "measured": "x"}, "up": Up(model=1)},
        {"code": "", "reply": {**REPLY, "measured": [1]}, "up": Up(model=1)},
        {"code": "", "reply": {**REPLY, "state": [1]}, "up": Up(model=1)},
        {"code": "", "reply": {**REPLY, "state": ["../x", 1, "0"]}, "up": Up(model=1)},
        {"code": "", "reply": {**REPLY, "stop": "end the run"}, "up": Up()},
        {"code": "", "reply": {**REPLY, "file": "../../x"}, "up": Up()},
        {"code": "", "reply": {**REPLY, "client": "ada"}, "up": Up()},
        {"code": "", "reply": {**REPLY, "unknown": 1}, "up": Up()},
        {"code": "", "reply": REPLY, "up": Up(served=3)},
    ],
)
def test_a_site_that_answers_nonsense_leaves_the_run_to_the_others(
    lie: bytes | dict[str, Any], tmp_path: Path
) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=1)
    transport = network_of(tmp_path).transport()
    transport.sites["bo"] = Liar(transport.sites["bo"], lie)
    run = run_apart(config, tmp_path / "run", transport)
    assert run.rounds()[0]["joined"] == ["ada", "cy", "di"]
    assert set(run.final()) == {"ada", "cy", "di"}
    assert {row["client"] for row in run.rejected()} == {"bo"}


class Repeating:
    """A site that answers each step a second time with its first answer."""

    def __init__(self, site: Any) -> None:
        self.site = site
        self.first: bytes | None = None

    def answer(self, data: bytes) -> bytes:
        answer = bytes(self.site.answer(data))
        if unpacked(data)["kind"] != "perform":
            return answer
        if self.first is None:
            self.first = answer
        return self.first


def test_an_answer_to_an_earlier_request_does_not_count(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", rounds=2)
    transport = network_of(tmp_path).transport()
    transport.sites["bo"] = Repeating(transport.sites["bo"])
    run = run_apart(config, tmp_path / "run", transport)
    assert [row["joined"] for row in run.rounds()] == [
        ["ada", "bo", "cy", "di"],
        ["ada", "cy", "di"],
    ]
    assert {row["reason"] for row in run.rejected()} == {"a reply to another request"}


# Bad input, before anything is written.


def refusal(config: Mapping[str, Any], tmp_path: Path, network: Network | None = None) -> str:
    network = network or network_of(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        run_apart(config, tmp_path / "run", network.transport())
    assert not (tmp_path / "run").exists()
    assert not list(network.folder.glob("*/*/run.json")) and "\n" not in str(caught.value)
    return str(caught.value)


def test_sites_that_describe_different_tasks_are_refused(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg")
    network = network_of(tmp_path)

    class Other(Apart):
        def _sent(self, name: str, data: bytes) -> Any:
            answer = super()._sent(name, data)
            if name == "bo" and "roster" in answer:
                answer["roster"]["task"]["outputs"] = 4
            return answer

    with pytest.raises(ConfigurationError, match="'ada' and 'bo' have different tasks"):
        run_apart(config, tmp_path / "run", Other(network.transport().sites))
    assert not (tmp_path / "run").exists()


def test_a_site_that_counts_more_samples_than_there_can_be_is_refused(tmp_path: Path) -> None:
    class Boasting(Apart):
        def _sent(self, name: str, data: bytes) -> Any:
            answer = super()._sent(name, data)
            if name == "bo" and "roster" in answer:
                answer["roster"]["sizes"]["train"]["bo"] = 2**70
            return answer

    config = apart_config(tmp_path, "fedavg")
    transport = Boasting(network_of(tmp_path).transport().sites)
    with pytest.raises(ConfigurationError, match="'bo' sent no sizes"):
        run_apart(config, tmp_path / "run", transport)
    assert not (tmp_path / "run").exists()


def test_a_site_without_training_rows_is_refused(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg")
    np.savez(tmp_path / "data" / "bo.npz", x=np.zeros((0, 1, 8, 8), np.float32), y=np.zeros(0, int))
    sentence = refusal(config, tmp_path)
    assert "'bo'" in sentence and "refused:data" in sentence
    assert "bo" in (tmp_path / "sites" / "bo" / "site.log").read_text()


def test_a_method_that_a_site_does_not_allow_is_refused(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "scaffold")
    network = network_of(tmp_path, changes={"cy": {"methods": ("fedavg",)}})
    sentence = refusal(config, tmp_path, network)
    assert "'cy'" in sentence and "refused:method" in sentence


def test_a_method_that_needs_validation_data_is_refused_without_them(tmp_path: Path) -> None:
    assert "validation data at the server" in refusal(apart_config(tmp_path, "cffl"), tmp_path)


def test_a_new_run_needs_all_sites(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg")
    transport = network_of(tmp_path).transport()
    transport.away = {"di"}
    with pytest.raises(ConfigurationError, match="'di' cannot be reached"):
        run_apart(config, tmp_path / "run", transport)


def test_an_experiment_without_apart_cannot_be_a_session(tmp_path: Path) -> None:
    config = apart_config(tmp_path, "fedavg", data={"apart": False})
    with pytest.raises(ConfigurationError, match="data.apart"):
        Session(experiment(config), network_of(tmp_path).transport())
