"""Everything that a stranger can do to a site: bytes in, a result or a code out, and no text."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from equipoise import methods
from equipoise.data.agreement import task_of
from equipoise.experiment import experiment
from equipoise.experiment.build import prepare
from equipoise.records import Down, Record
from equipoise.runtime import wire
from equipoise.runtime.evaluation_messages import EvaluateModels, PredictShared, SendModel
from equipoise.runtime.messages import Job, Request, state_name
from equipoise.session import job_of
from equipoise.site import Site, SiteSettings
from equipoise.site.checks import is_step
from equipoise.site.messages import CODES, message, packed, perform_message, unpacked
from equipoise.site.runtime import Result, SiteRuntime
from equipoise.transports.apart import Apart
from equipoise.tree import Tree
from equipoise.version import __version__
from tests.helpers.apart_sites import apart_config

SECRET = "patient4711secret"
RUN = "0123456789abcdef" * 2
OTHER_RUN = "f" * 32


class Stranger:
    """A server that sends what a test says to one site, whose files have a secret name."""

    def __init__(self, tmp: Path, method: Any = "scaffold", **changes: Any) -> None:
        config = apart_config(tmp, method, evaluation={"curves": False})
        own = tmp / SECRET / f"{SECRET}.npz"
        own.parent.mkdir()
        (tmp / "data" / "bo.npz").rename(own)
        self.job = job_of(experiment(config).with_model((1, 8, 8)), RUN)
        self.folder = tmp / SECRET / "site"
        self.site = Site("bo", SiteSettings(own, self.folder, **changes), SiteRuntime)
        self.ticket = ""

    def send(self, data: bytes) -> Any:
        """Send bytes; return the answer after checking that it is a code without any text."""
        answer = self.site.answer(data)
        assert SECRET.encode() not in answer
        record = unpacked(answer)
        assert record["code"] in CODES
        if record["code"]:
            assert set(record) == {"code"}
        return record

    def code(self, data: bytes) -> str:
        return str(self.send(data)["code"])

    def describe(self, job: Job | None = None) -> Any:
        """Let the site describe its data, which gives the ticket of the next opening."""
        answer = self.send(message("describe", "bo", job or self.job).joined())
        self.ticket = answer.get("ticket", "")
        return answer

    def opening(self, job: Job | None = None) -> bytes:
        return message("open", "bo", job or self.job, ticket=self.ticket).joined()

    def open(self, job: Job | None = None) -> str:
        """Open a run as a server does; return the code."""
        code = str(self.describe(job)["code"])
        return code or self.code(self.opening(job))

    def restart(self) -> None:
        """End the site and start it anew."""
        self.site.close()
        self.site = Site("bo", self.site.settings, SiteRuntime)

    def closing(self) -> bytes:
        return message("close", "bo", self.job, ticket=self.ticket).joined()

    def request(self, **more: Any) -> Request:
        model = Tree({}, "model")
        values: dict[str, Any] = {"client": "bo", "step": "client", "down": Down(model=model)}
        return Request(**{**values, "round": 1, "rounds": 2, "exchange": 1, **more})

    def perform(self, **more: Any) -> bytes:
        return perform_message(self.job, self.request(**more), None, ticket=self.ticket).joined()

    def changed(self, data: bytes, **changes: Any) -> bytes:
        """Return a message with other entries."""
        return packed({**unpacked(data), **changes})


@pytest.fixture
def stranger(tmp_path: Path) -> Stranger:
    return Stranger(tmp_path)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stranger]:
    """A site whose run is open, for messages that change nothing."""
    stranger = Stranger(tmp_path_factory.mktemp("opened"))
    assert stranger.open() == ""
    yield stranger
    stranger.site.close()


def test_a_description_has_sizes_and_no_name_of_a_file(stranger: Stranger) -> None:
    answer = stranger.send(message("describe", "bo", stranger.job).joined())
    assert answer["code"] == "" and answer["roster"]["ids"] == ["bo"]
    assert answer["roster"]["name"] == "" and answer["roster"]["classes"]["train"]["bo"] == 3
    assert not stranger.folder.exists(), "a description writes nothing"


EVALUATION = EvaluateModels(Down(model=Tree({}, "model")), ["test"], ["accuracy"], True)


def evaluation(stranger: Stranger, **changes: Any) -> bytes:
    order = replace(EVALUATION, **changes)
    return stranger.perform(step=order.step, down=order.record(), exchange=0)


OUTPUTS = PredictShared(Down(model=Tree({}, "model")), "global", 0, 2**40)
STATE = (state_name("bo", 1, 0, 1), "0" * 64)
TENSOR = torch.ones(3)
BROKEN: dict[str, tuple[str, Callable[[Stranger], bytes]]] = {
    "no message": ("message", lambda s: b"hello"),
    "empty": ("message", lambda s: b""),
    "protocol": ("protocol", lambda s: s.changed(s.perform(), protocol=2)),
    "protocol is a tensor": ("protocol", lambda s: s.changed(s.perform(), protocol=TENSOR)),
    "protocol is true": ("protocol", lambda s: s.changed(s.perform(), protocol=True)),
    "version is a tensor": ("version", lambda s: s.changed(s.perform(), version=TENSOR)),
    "name is a tensor": ("name", lambda s: s.changed(s.perform(), site=TENSOR)),
    "kind is a tensor": ("message", lambda s: s.changed(s.perform(), kind=TENSOR)),
    "digest is a tensor": ("experiment", lambda s: s.changed(s.perform(), experiment=TENSOR)),
    "ticket is a tensor": ("opening", lambda s: s.changed(s.perform(), ticket=TENSOR)),
    "no ticket": ("opening", lambda s: s.changed(s.perform(), ticket=None)),
    "deadline is a tensor": ("message", lambda s: s.changed(s.perform(), deadline=TENSOR)),
    "deadline is no number": ("message", lambda s: s.changed(s.perform(), deadline=math.nan)),
    "deadline is over": ("message", lambda s: s.changed(s.perform(), deadline=-1.0)),
    "client with a surrogate": ("name", lambda s: s.perform(client="\ud800")),
    "client with a surrogate and a state": (
        "name",
        lambda s: s.perform(client="\ud800", state=STATE),
    ),
    "no protocol": ("protocol", lambda s: packed({"kind": "perform"})),
    "version": ("version", lambda s: s.changed(s.perform(), version="0.0")),
    "name": ("name", lambda s: s.changed(s.perform(), site="ada")),
    "client": ("name", lambda s: s.perform(client="ada")),
    "kind": ("message", lambda s: s.changed(s.perform(), kind="delete")),
    "stale run": ("run", lambda s: s.changed(s.perform(), run=OTHER_RUN)),
    "run is a path": ("run", lambda s: s.changed(s.perform(), run="../../etc")),
    "digest": ("experiment", lambda s: s.changed(s.perform(), experiment="0" * 64)),
    "rounds": ("round", lambda s: s.perform(rounds=3)),
    "private step": ("step", lambda s: s.perform(step="_control")),
    "no step": ("step", lambda s: s.perform(step="deliver")),
    "hook": ("step", lambda s: s.perform(step="serves")),
    "class attribute": ("step", lambda s: s.perform(step="needs")),
    "dunder": ("step", lambda s: s.perform(step="__init__")),
    "path to an attribute": ("step", lambda s: s.perform(step="client.__globals__")),
    "guest": ("step", lambda s: s.perform(step="@fedrdn.statistics")),
    "step without exchange": ("step", lambda s: s.perform(exchange=0)),
    "evaluation in an exchange": (
        "step",
        lambda s: s.perform(step="@measure", down=EVALUATION.record()),
    ),
    "metric": ("metrics", lambda s: evaluation(s, metrics=["os:system"])),
    "metrics of another form": ("metrics", lambda s: evaluation(s, metrics=[1])),
    "metric that is not measured": ("metrics", lambda s: evaluation(s, metrics=["auroc"])),
    "counts of scores": ("metrics", lambda s: evaluation(s, curves=True)),
    "distances": ("metrics", lambda s: s.perform(step="@distance", down=Record(), exchange=0)),
    "split": ("splits", lambda s: evaluation(s, splits=["everything"])),
    "split that is not evaluated": ("splits", lambda s: evaluation(s, splits=["train"])),
    "splits many times": ("splits", lambda s: evaluation(s, splits=["test"] * 9)),
    "metrics many times": ("metrics", lambda s: evaluation(s, metrics=["accuracy"] * 9)),
    "a long header": ("message", lambda s: packed({"kind": "x" * 2**26})),
    "shared test set": ("splits", lambda s: evaluation(s, splits=["shared"])),
    "outputs of billions of samples": (
        "splits",
        lambda s: s.perform(step=OUTPUTS.step, down=OUTPUTS.record(), exchange=0),
    ),
    "splits of another form": ("splits", lambda s: evaluation(s, splits=[["test"]])),
    "after local": ("metrics", lambda s: s.perform(after={"splits": ["test"], "metrics": []})),
    "after local form": ("message", lambda s: s.perform(after={"file": "x"})),
    "state of another": ("name", lambda s: s.perform(state=(state_name("ada", 1, 0, 1), "0" * 64))),
    "state is a path": ("message", lambda s: s.perform(state=("../../secret", "0" * 64))),
    "state without digest": ("message", lambda s: s.perform(state=(STATE[0], ""))),
    "committed is a path": ("message", lambda s: s.perform(committed="/etc/passwd")),
    "round of another form": ("message", lambda s: s.perform(round="1")),
    "request of another form": ("message", lambda s: s.changed(s.perform(), request={"x": 1})),
    "job of another run": (
        "run",
        lambda s: s.changed(message("open", "bo", s.job).joined(), run=OTHER_RUN),
    ),
    "job of another experiment": (
        "experiment",
        lambda s: s.changed(message("open", "bo", s.job).joined(), experiment="0" * 64),
    ),
    "no job": ("message", lambda s: s.changed(message("open", "bo", s.job).joined(), job="{")),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_message_that_breaks_a_check_is_refused(case: str, opened: Stranger) -> None:
    word, broken = BROKEN[case]
    assert opened.code(broken(opened)) == f"refused:{word}"


def test_a_message_that_is_too_large_is_refused_unread(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path, limit=1000)
    assert stranger.code(b"x" * 1001) == "refused:size"
    assert SiteSettings(tmp_path, tmp_path).limit == 4 * 2**30


def test_nothing_is_performed_before_a_run_is_open_or_after_it_is_closed(
    stranger: Stranger,
) -> None:
    assert stranger.code(stranger.perform()) == "refused:closed"
    assert stranger.open() == ""
    assert stranger.code(stranger.closing()) == ""
    assert stranger.code(stranger.perform()) == "refused:closed"


def test_rounds_and_attempts_do_not_go_back_until_the_run_is_opened_again(
    stranger: Stranger,
) -> None:
    assert stranger.open() == ""

    def checked(**at: int) -> str:
        return stranger.code(stranger.perform(step="@present", down=Record(), exchange=0, **at))

    assert checked(round=2, attempt=1) == ""
    assert checked(round=2, attempt=0) == checked(round=1, attempt=5) == "refused:round"
    assert checked(round=2, attempt=1) == checked(round=3, attempt=0) == ""
    assert stranger.open() == ""
    assert checked(round=1, attempt=0) == ""


# Messages that arrive again.


def train(stranger: Stranger, **more: Any) -> bytes:
    """Return a message whose step, a round of training, writes a state."""
    job = experiment(stranger.job.experiment)
    bench, _ = prepare(job, task_of(job.data.schema), ["bo"])
    model = bench.initial("model")
    return stranger.perform(down=Down(model=model, control=0 * model.params), **more)


def state_files(stranger: Stranger) -> dict[str, bytes]:
    files = sorted((stranger.folder / RUN / "states").rglob("*.safetensors"))
    return {path.name: path.read_bytes() for path in files}


def test_messages_of_an_earlier_opening_change_no_state(stranger: Stranger) -> None:
    assert stranger.open() == ""
    old = [stranger.opening(), train(stranger, round=1), stranger.closing()]
    assert stranger.code(old[1]) == ""
    assert stranger.open() == ""
    assert stranger.code(train(stranger, round=2)) == ""
    newest = state_files(stranger)
    assert len(newest) == 1
    assert [stranger.code(data) for data in old] == ["refused:opening"] * 3
    assert state_files(stranger) == newest
    present = stranger.perform(step="@present", down=Record(), exchange=0, round=2)
    assert stranger.code(present) == "", "the newer opening is still open"


def test_messages_of_before_a_restart_of_the_site_change_no_state(stranger: Stranger) -> None:
    description = message("describe", "bo", stranger.job).joined()
    assert stranger.open() == ""
    old = [description, stranger.opening(), train(stranger, round=1)]
    assert stranger.code(old[-1]) == stranger.code(train(stranger, round=2)) == ""
    newest = state_files(stranger)
    stranger.restart()
    codes = [stranger.code(data) for data in old]
    assert codes == ["", "refused:opening", "refused:closed"]
    assert state_files(stranger) == newest


def test_an_opening_that_arrives_twice_changes_nothing(stranger: Stranger) -> None:
    assert stranger.open() == ""
    assert stranger.code(train(stranger, round=2)) == ""
    assert stranger.code(stranger.opening()) == ""
    assert stranger.code(train(stranger, round=1)) == "refused:round"


def test_a_ticket_opens_no_other_run(stranger: Stranger) -> None:
    stranger.describe()
    assert stranger.code(stranger.opening(replace(stranger.job, run=OTHER_RUN))) == (
        "refused:opening"
    )


def test_a_step_whose_state_is_absent_deletes_no_state(stranger: Stranger) -> None:
    assert stranger.open() == ""
    assert stranger.code(train(stranger, round=1)) == ""
    states = state_files(stranger)
    absent = (state_name("bo", 2, 0, 1), "0" * 64)
    assert stranger.code(train(stranger, round=2, exchange=2, state=absent)) == "no-state"
    assert state_files(stranger) == states


# Waits.


class Hanging:
    """A runtime at the seam of a site, whose step ends when it is interrupted."""

    def __init__(self, name: str, settings: SiteSettings) -> None:
        self.inner = SiteRuntime(name, settings)
        self.is_working = threading.Event()
        self.is_interrupted = threading.Event()

    def describe(self, job: Job) -> Result:
        return self.inner.describe(job)

    def open(self, job: Job, folder: Path) -> Result:
        return self.inner.open(job, folder)

    def perform(self, request: Request, deadline: float) -> Result:
        self.is_working.set()
        ended = self.is_interrupted.wait(60)
        return Result("refused:ended" if ended else "late")

    def interrupt(self) -> None:
        self.is_interrupted.set()

    def close(self) -> None:
        self.inner.close()


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[tuple[Stranger, list[str]]]:
    """A site that performs a step which does not end, and the codes of that step."""
    stranger = Stranger(tmp_path, wait=0.2)
    runtime = Hanging("bo", stranger.site.settings)
    stranger.site = Site("bo", stranger.site.settings, lambda *_: runtime)
    assert stranger.open() == ""
    codes: list[str] = []
    data = stranger.perform()
    thread = threading.Thread(target=lambda: codes.append(stranger.code(data)))
    thread.start()
    assert runtime.is_working.wait(30)
    yield stranger, codes
    runtime.interrupt()
    thread.join(30)
    assert codes == ["refused:ended"]


HangingSite = tuple[Stranger, list[str]]


def test_a_close_does_not_wait_for_a_step(hanging: HangingSite) -> None:
    stranger, _ = hanging
    assert stranger.code(stranger.closing()) == ""
    assert stranger.code(stranger.perform()) == "refused:closed"


def test_a_site_that_is_ended_does_not_wait_for_a_step(hanging: HangingSite) -> None:
    stranger, _ = hanging
    stranger.site.close()
    assert stranger.code(stranger.perform()) == "refused:closed"


def test_a_server_that_was_started_anew_does_not_wait_for_a_step(hanging: HangingSite) -> None:
    stranger, _ = hanging
    assert stranger.open() == "", "it describes and opens"


def test_messages_that_arrive_again_do_not_end_a_step(hanging: HangingSite) -> None:
    stranger, codes = hanging
    assert stranger.code(stranger.opening()) == ""
    assert stranger.describe()["code"] == ""
    assert stranger.code(stranger.changed(stranger.closing(), ticket="0" * 32)) == "refused:opening"
    assert codes == []


def test_a_message_waits_for_a_step_only_so_long(hanging: HangingSite) -> None:
    stranger, codes = hanging
    assert stranger.code(stranger.perform()) == "refused:busy"
    other = replace(stranger.job, experiment={**stranger.job.experiment, "seed": 8})
    assert stranger.describe(other)["code"] == "refused:busy"
    assert codes == []


def test_an_earlier_exchange_of_a_round_that_arrives_again_is_refused(stranger: Stranger) -> None:
    assert stranger.open() == ""
    assert stranger.code(stranger.perform(exchange=2, state=STATE)) == "no-state"
    assert stranger.code(stranger.perform(exchange=1)) == "refused:round"
    assert stranger.code(stranger.perform(exchange=2, state=STATE)) == "no-state"
    present = stranger.perform(step="@present", down=Record(), exchange=0)
    assert stranger.code(present) == "", "an evaluation follows the exchanges of its round"
    assert stranger.code(stranger.perform(exchange=1)) == "refused:round"


def test_an_experiment_with_another_schema_than_the_agreed_one_is_refused(tmp_path: Path) -> None:
    agreed = tmp_path / "agreed.yaml"
    agreed.write_text("classes: ['0', '1', '2']\nshape: [1, 8, 8]\n")
    stranger = Stranger(tmp_path, schema=agreed)
    assert stranger.describe()["code"] == ""
    agreed.write_text("classes: ['0', '1', '3']\nshape: [1, 8, 8]\n")
    assert stranger.code(stranger.opening()) == "refused:schema"


def test_a_run_is_not_opened_with_another_experiment(stranger: Stranger) -> None:
    assert stranger.open() == ""
    other = replace(stranger.job, experiment={**stranger.job.experiment, "seed": 8})
    assert stranger.open(other) == "refused:experiment"
    ignored = {"workers": 7, "device": "cuda", "memory": 1, "keep": 9, "faults": {"dropout": 0.5}}
    same = replace(stranger.job, experiment={**stranger.job.experiment, **ignored})
    assert stranger.open(same) == ""


@pytest.mark.parametrize("allowed", [("fedavg",), ()])
def test_a_method_that_is_not_allowed_is_refused(allowed: Any, tmp_path: Path) -> None:
    stranger = Stranger(tmp_path, methods=allowed)
    assert stranger.code(message("describe", "bo", stranger.job).joined()) == "refused:method"
    assert stranger.code(message("open", "bo", stranger.job).joined()) == "refused:method"


@pytest.mark.parametrize("slot", ["companion", "inputs", "weights", "finish", "beside"])
def test_a_method_inside_of_another_must_be_allowed_too(slot: str, tmp_path: Path) -> None:
    stranger = Stranger(tmp_path, "fedavg", methods=("fedavg",))
    spec = {"name": "fedavg", slot: {"name": "kdia"}}
    job = replace(stranger.job, experiment={**stranger.job.experiment, "method": spec})
    assert stranger.code(message("describe", "bo", job).joined()) == "refused:method"


CODE = "tests.helpers.packages:anything"


@pytest.mark.parametrize(
    "named",
    [
        {"model": CODE, "models": {}},
        {"models": {"model": "equipoise.storage.files:unlink"}},
        {"evaluation": {"metrics": [CODE]}},
        {"training": {"loss": CODE}},
        {"data": {"schema": "/etc/passwd"}},
        {"data": 3},
        {"evaluation": 3},
        {"rounds": "many"},
        {"unknown": 1},
    ],
    ids=str,
)
def test_code_and_files_that_a_server_names_are_refused(
    named: dict[str, Any], stranger: Stranger
) -> None:
    allowed = {"packages": ["tests", "equipoise"], "names": [CODE], "everything": True}
    spec = dict(stranger.job.experiment)
    for key, value in named.items():
        spec[key] = (
            {**spec[key], **value}
            if isinstance(spec.get(key), dict) and isinstance(value, dict)
            else value
        )
    job = replace(stranger.job, experiment=spec, allowed=allowed)
    assert stranger.code(message("describe", "bo", job).joined()) == "refused:experiment"


def test_a_method_that_is_code_is_refused_whatever_the_server_permits(stranger: Stranger) -> None:
    spec = {**stranger.job.experiment, "method": {"name": "tests.helpers.packages:Anything"}}
    job = replace(stranger.job, experiment=spec, allowed={"everything": True})
    assert stranger.code(message("describe", "bo", job).joined()) == "refused:method"


def test_names_of_data_and_deaths_are_ignored(stranger: Stranger) -> None:
    data = {**stranger.job.experiment["data"], "name": "/etc", "codes": "/etc/passwd"}
    job = replace(stranger.job, experiment={**stranger.job.experiment, "data": data})
    answer = stranger.send(message("describe", "bo", job).joined())
    assert answer["code"] == "" and answer["roster"]["sizes"]["train"]["bo"] > 0
    assert stranger.open() == ""
    dies = stranger.perform(step="@present", down=Record(), exchange=0, die=True)
    assert stranger.code(dies) == "", "this process is still alive"


def test_data_that_do_not_fit_are_refused_and_the_log_alone_says_why(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path)
    (tmp_path / SECRET / f"{SECRET}.npz").write_bytes(b"")
    assert stranger.code(message("describe", "bo", stranger.job).joined()) == "refused:data"
    assert SECRET in (stranger.folder / "site.log").read_text()


@pytest.mark.parametrize(("minimum", "code"), [(0, ""), (10**6, "refused:rows")])
def test_a_site_with_fewer_samples_than_its_minimum_takes_no_part(
    minimum: int, code: str, tmp_path: Path
) -> None:
    stranger = Stranger(tmp_path, minimum_rows=minimum)
    assert stranger.describe()["code"] == code


def test_a_step_that_raises_has_a_code_and_its_text_is_in_the_log(opened: Stranger) -> None:
    assert opened.code(opened.perform(down=Down(model=Tree({}, SECRET)))) == "raised"
    assert "Traceback" in (opened.folder / "site.log").read_text()


def test_a_message_cannot_fill_the_log_or_imitate_its_entries(stranger: Stranger) -> None:
    forged = "2026-01-01T00:00:00+00:00 refused:size"
    name = "x" * 10**6 + f"\n{forged}\r{forged}\x1b[2J"
    spec = {**stranger.job.experiment, "method": {"name": name}}
    job = replace(stranger.job, experiment=spec)
    assert stranger.code(message("describe", "bo", job).joined()) == "refused:method"
    log = (stranger.folder / "site.log").read_text()
    assert len(log) < 10**5 and "\x1b" not in log
    assert not any(line.startswith(forged) for line in log.splitlines())


def test_a_state_that_is_not_there_has_a_code(opened: Stranger) -> None:
    assert opened.code(opened.perform(state=STATE)) == "no-state"


def test_a_personal_model_does_not_leave(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path, "standalone")
    assert stranger.open() == ""
    for name in ("personal", "local", "global"):
        request = SendModel(Down(), name)
        data = stranger.perform(step=request.step, down=request.record(), exchange=0)
        assert stranger.code(data) in ("refused:model", "raised")


def test_a_folder_that_cannot_be_written_has_a_code(tmp_path: Path) -> None:
    stranger = Stranger(tmp_path)
    stranger.folder.write_text("a file in its place")
    assert stranger.open() == "disk-full"


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.binary(max_size=400))
def test_random_bytes_have_a_code(data: bytes, opened: Stranger) -> None:
    assert opened.code(data).startswith("refused:")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.just("\ud800")
    | st.sampled_from([torch.ones(3), torch.ones(()), torch.ones(0)]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=6,
)
KEYS = (
    "kind",
    "protocol",
    "version",
    "site",
    "run",
    "experiment",
    "job",
    "request",
    "down",
    "deadline",
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(key=st.sampled_from(KEYS), value=VALUES, opening=st.booleans())
def test_messages_with_a_random_entry_have_a_code(
    key: str, value: Any, opening: bool, opened: Stranger
) -> None:
    whole = (
        message("describe", "bo", opened.job).joined()
        if opening
        else opened.perform(step="deliver")
    )
    entries = {**unpacked(whole), key: value}
    try:
        data = packed(entries)
    except (TypeError, ValueError):
        return  # no bytes hold such a message
    assert opened.code(data) != "raised"


FIELDS = (
    "client",
    "step",
    "round",
    "rounds",
    "attempt",
    "exchange",
    "state",
    "committed",
    "large",
    "after",
    "die",
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(field=st.sampled_from(FIELDS), value=VALUES)
@pytest.mark.thorough
def test_requests_with_a_random_field_have_a_code(field: str, value: Any, opened: Stranger) -> None:
    fields = {**wire.to_wire(opened.request(step="@present", exchange=0)), field: value}
    try:
        data = opened.changed(opened.perform(), request=fields, down=Record())
    except (TypeError, ValueError):
        return
    assert opened.code(data) != "raised"
    opened.open()  # a large number of a round would be the last one that is accepted


@pytest.mark.parametrize(
    "name", [".", "..", ".hidden", "-rf", "a\\b", "c:", "a*", "end.", "a/b", ""]
)
def test_a_name_that_is_unsafe_as_the_name_of_a_file_is_no_name_of_a_site(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="rename it"):
        Site(name, SiteSettings(tmp_path, tmp_path), SiteRuntime)
    with pytest.raises(ValueError, match="rename it"):
        Apart({name: Site("bo", SiteSettings(tmp_path, tmp_path), SiteRuntime)})


# Steps.


@pytest.mark.parametrize("method", methods.names())
def test_every_step_of_every_method_is_public(method: str) -> None:
    assert is_step(methods.make(method), "client")


def test_a_step_has_the_signature_of_one() -> None:
    fedsac = methods.make("fedsac")
    assert is_step(fedsac, "learn_alone") or is_step(fedsac, "train_alone")
    for name in ("deliver", "start", "update", "inputs", "serves", "title", "needs", "", "a.b"):
        assert not is_step(fedsac, name)


def test_a_version_is_the_same_on_both_sides(opened: Stranger) -> None:
    assert Job.of(opened.job.text()).version == __version__
