"""A measurement by itself: what the server asks for and when, what clients answer, which rows come
of it. Nobody is trained.
"""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from equipoise.engine import evaluation
from equipoise.engine.evaluation import Evaluator, alike, check_main
from equipoise.experiment import Evaluation
from equipoise.method import Served
from equipoise.metrics import score_histograms
from equipoise.metrics.registry import find
from equipoise.records import Down, State, Up, pack, unpack
from equipoise.runtime import client_histograms
from equipoise.runtime.client_evaluation import NotCommon, evaluate, measure, score, served
from equipoise.runtime.evaluation_messages import (
    CheckState,
    EvaluateModels,
    EvaluationRequest,
    FeatureDistance,
    ModelsEvaluated,
    PredictShared,
    SendModel,
)
from equipoise.runtime.messages import Reply
from equipoise.storage.store import RoundRecord
from equipoise.task import Task
from equipoise.tree import Tree

TWO = Task("classification", (2,), 2)
NUMBER = Task("regression", (2,), 1, centre=10.0, scale=2.0)


def samples(x: Any, y: Any) -> Any:
    """As much of `Samples` as measuring uses."""
    x, y = torch.as_tensor(x, dtype=torch.float32), torch.as_tensor(y)
    return SimpleNamespace(
        x=x,
        y=y,
        groups=None,
        some=lambda chosen: samples(x[chosen], y[chosen]),
        chunks=lambda: torch.split(torch.arange(len(y)), 16),
    )


# Scores.


def test_metrics_of_classes_are_those_of_their_logits() -> None:
    logits, y = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.5]]), torch.tensor([0, 1, 1])
    found = score(TWO, logits, y, ["accuracy", "loss"])
    assert found == pytest.approx(
        {"accuracy": 2 / 3, "loss": log_loss(y, torch.softmax(logits.double(), 1))}
    )
    assert score(TWO, logits[:0], y[:0], ["accuracy"]) == {}


def test_errors_are_told_in_the_targets_unit_and_the_loss_in_that_of_training() -> None:
    found = score(
        NUMBER, torch.tensor([[1.0], [0.0]]), torch.tensor([0.5, -1.0]), ["rmse", "mae", "loss"]
    )  # 12 and 10, of 11 and 8
    assert found == pytest.approx({"rmse": np.sqrt(2.5), "mae": 1.5, "loss": 0.625})


def test_a_metric_that_does_not_exist_has_no_value_and_that_of_a_diverged_model_is_not_a_number() -> (
    None
):
    y = torch.tensor([1, 1])
    assert score(TWO, torch.zeros(2, 2), y, ["auroc", "accuracy"]).keys() == {"accuracy"}
    found = score(TWO, torch.tensor([[np.nan, 0.0], [0.0, 1.0]]), y, ["loss", "auroc"])
    assert np.isnan(found["loss"]) and np.isnan(found["auroc"])


# What a client answers.


class Client:
    """Its models are numbers that its inputs are multiplied with."""

    id = "ada"
    task = TWO
    metrics: dict[str, Any] = {}
    inputs: Any = None
    train = [1]

    def predict(self, model: Any, on: Any) -> torch.Tensor:
        return on.x * model

    def load(self, tree: Any) -> Any:
        return tree

    def features(self, model: Any) -> torch.Tensor:
        return torch.tensor([[[1.0, 2.0]], [[3.0, 4.0]], [[8.0, 0.0]]]) * model


class Serving:
    """A method that serves what it was delivered."""

    changed: Any = None

    def __init__(self, **models: Any) -> None:
        self.models = models

    def inputs(self, client: Any, down: Any) -> Any:
        return self.changed

    def serves(self, client: Any, down: Any) -> Any:
        return self.models


PARTS = {
    "test": samples([[0.0, 1.0]] * 10 + [[1.0, 0.0]] * 30, [1] * 30 + [0] * 10),
    "validation": samples([[0.0, 1.0]], [1]),
    "shared": samples([[0.0, 1.0]] * 40, [1] * 40),
}


def answer(
    method: Any, request: EvaluationRequest, client: Any = None
) -> tuple[Up, list[dict[str, Any]]]:
    return evaluate(request.step, method, client or Client(), request.record(), PARTS.__getitem__)


def asked(method: Any, client: Any = None, **more: Any) -> tuple[Up, list[dict[str, Any]]]:
    told = {"splits": ["validation", "test"], "metrics": ["accuracy"], "alike": True, **more}
    return answer(method, EvaluateModels(Down(), **told), client)


def test_exactly_one_served_model_is_the_main_one() -> None:
    given: Any = {
        "a": 1.0,
        "b": Served(2.0, same_for_all=True, main=True),
        "c": Served(3.0, main=True),
    }  # type: ignore[arg-type]
    found = served(Serving(**given), Client(), Down())  # type: ignore[arg-type]
    assert {name: (one.model, one.same_for_all, one.main) for name, one in found.items()} == {
        "a": (1.0, False, False), "b": (2.0, True, True), "c": (3.0, False, False),
    }  # fmt: skip
    first: Any = served(Serving(a=1.0, b=2.0), Client(), Down())  # type: ignore[arg-type]
    assert [name for name, one in first.items() if one.main] == ["a"]
    method, client = Serving(**given), Client()
    method.changed = "other inputs"
    own = served(method, client, Down())  # type: ignore[arg-type]
    assert not own["b"].same_for_all and client.inputs == "other inputs"  # what it sees is its own
    assert served(Serving(), Client(), Down()) == {}  # type: ignore[arg-type]


def test_every_model_is_measured_on_every_part() -> None:
    rows = measure(
        Client(), {"a": 1.0, "b": -1.0}, ["validation", "test"], ["accuracy"], PARTS.__getitem__
    )  # type: ignore[arg-type, dict-item]
    assert [(row["model"], row["split"], row["metric"], row["value"]) for row in rows] == [
        ("a", "validation", "accuracy", 1.0),
        ("b", "validation", "accuracy", 0.0),
        ("a", "test", "accuracy", 0.5),
        ("b", "test", "accuracy", 0.5),
    ]


@pytest.mark.parametrize("same", [True, False])
def test_models_for_all_are_left_to_the_server_on_the_shared_test_set(same: bool) -> None:
    method = Serving(all=Served(1.0, same_for_all=True), own=2.0)  # type: ignore[arg-type]
    up, rows = asked(method, splits=["test", "shared"], alike=same, ending=True, curves=True)
    assert up.served == {
        "all": {"common": same, "main": True},
        "own": {"common": False, "main": False},
    }
    assert [(row["model"], row["split"]) for row in rows] == [
        ("all", "test"), ("own", "test"), *([] if same else [("all", "shared")]), ("own", "shared"),
    ]  # fmt: skip
    assert (
        set(up.curves) == ({"own"} if same else {"all", "own"})
        and score_histograms.total(up.curves["own"].numpy()) == 40
    )
    # of the shared test set, which has one class
    assert up.curves["own"][1, score_histograms.NEGATIVES].sum() == 0


def test_counts_and_the_majority_are_for_the_last_measurement_and_those_who_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    method = Serving(own=1.0)
    assert set(asked(method)[0]) == {"served"}
    assert set(asked(method, ending=True, curves=False)[0]) == {"served", "majority"}
    up, _ = asked(method, ending=True, curves=True)
    assert up.majority == 0.75 and score_histograms.total(up.curves["own"].numpy()) == 40
    assert set(asked(method, ending=True, curves=True, splits=["validation"])[0]) == {"served"}
    number = Client()
    number.task = NUMBER
    assert "majority" not in asked(method, client=number, ending=True, metrics=[])[0]
    for word in ("no", " NO ", "0", "False"):
        monkeypatch.setenv("EQUIPOISE_CURVES", word)
        assert not client_histograms.allowed() and set(
            asked(method, ending=True, curves=True)[0]
        ) == {
            "served",
            "majority",
        }
    monkeypatch.setenv("EQUIPOISE_CURVES", "yes")
    assert client_histograms.allowed()


def test_slices_models_and_presence_are_sent_as_asked() -> None:
    tree = Tree({"w": torch.ones(1)})
    common: Any = Served(2.0, same_for_all=True)  # type: ignore[arg-type]
    method = Serving(a=1.0, b=common)
    up, rows = answer(method, PredictShared(Down(), "b", 38, 40))
    assert up.logits.tolist() == [[0.0, 2.0]] * 2 and rows == []
    handed: Any = Served(tree, same_for_all=True)  # type: ignore[arg-type]
    assert answer(Serving(a=handed), SendModel(Down(), "a"))[0].model is tree
    assert answer(method, CheckState()) == (Up(), [])


@pytest.mark.parametrize(
    "request_of", [SendModel, lambda down, name: PredictShared(down, name, 0, 1)]
)
@pytest.mark.parametrize("name", ["a", "c"])
def test_a_model_that_is_not_the_same_for_all_is_not_sent(request_of: Any, name: str) -> None:
    with pytest.raises(NotCommon, match="same for all"):
        answer(Serving(a=1.0, b=2.0), request_of(Down(), name))


def test_the_distance_of_mean_features_is_that_of_the_clients_inputs() -> None:
    client, method = Client(), Serving()
    method.changed = "other inputs"
    request: Any = FeatureDistance(Down(), 1.0, -0.5)  # type: ignore[arg-type]
    up, rows = answer(method, request, client)
    assert (
        dict(up) == pytest.approx({"angle": np.pi, "manhattan": 1.5 * (4 + 2)}, rel=1e-6)
        and rows == []
    )  # of (4, 2) and -(2, 1)
    assert client.inputs == "other inputs"
    client.train = []
    assert answer(method, request, client) == (Up(), [])


# Counts.


def test_counts_are_of_enough_samples_and_not_too_many_classes() -> None:
    def found(
        n: int = 30, classes: int = 2, task: str = "classification", value: float = 0.0
    ) -> bool:
        outputs = torch.full((n, classes), value)
        return bool(
            client_histograms.of(
                Task(task, (2,), classes), outputs, torch.arange(n) % max(1, classes), "m"
            )
        )  # type: ignore[arg-type]

    assert found() and found(classes=20) and found(classes=3)
    assert not any(
        [
            found(29),
            found(classes=21),
            found(classes=1),
            found(task="regression"),
            found(value=np.nan),
        ]
    )
    (table,) = client_histograms.of(
        TWO, torch.zeros(30, 2), torch.zeros(30, dtype=torch.long), "m"
    ).values()
    assert (
        table.dtype == torch.int32
        and table[0, score_histograms.POSITIVES].sum() == 30
        and client_histograms.fault(table, TWO) is None
    )
    few = torch.from_numpy(score_histograms.counted(np.full((29, 2), 0.5), np.zeros(29, int)))
    assert client_histograms.fault(
        few, TWO
    ) == "expected 30 samples or more" and "expected counts of shape" in str(
        client_histograms.fault(table, Task("classification", (2,), 3))
    )
    assert "expected counts" in str(client_histograms.fault("many", TWO))


def test_the_majority_is_the_share_of_the_most_frequent_class() -> None:
    assert (
        client_histograms.majority(torch.tensor([2, 0, 2, 1])) == 0.5
        and client_histograms.majority(torch.tensor([], dtype=torch.long)) == 0.0
    )


def test_a_row_is_kept_for_every_class_and_score_that_occurs() -> None:
    table = torch.from_numpy(
        score_histograms.counted([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [0, 1, 0])
    )
    rows = client_histograms.rows("ada", "m", "test", table)
    assert {row[:3] + row[9:] for row in rows} == {("ada", "m", "test", score_histograms.BINS)}
    low, high = score_histograms.limits(score_histograms.BINS)
    for c, wanted in enumerate(
        (
            [(0.2, 0, 1, 0, 0), (0.4, 1, 0, 0, 0), (0.9, 1, 0, 1, 0)],
            [(0.1, 0, 1, 0, 0), (0.6, 0, 1, 0, 1), (0.8, 1, 0, 1, 0)],
        )
    ):
        for row, (value, *counts) in zip([r for r in rows if r[3] == c], wanted, strict=True):
            assert low[row[4]] <= value < high[row[4]] and list(row[5:9]) == counts


# What the server asks.


class Clients:
    """Answer with a model for all, and one of their own if `own`; what they were asked."""

    def __init__(self, own: bool = False, **more: Any) -> None:
        self.own, self.more, self.asked = own, more, list[tuple[str, Any]]()

    def __call__(self, orders: Any) -> Any:
        self.asked += orders
        replies = []
        for client, order in orders:
            up, rows = self.answer(client, order)
            replies.append(Reply(client, up, measured=rows))
        return replies

    def answer(self, client: str, order: Any) -> Any:
        if isinstance(order, PredictShared):
            positions = torch.arange(float(order.start), float(order.stop))[:, None]
            return Up(logits=positions * torch.tensor([[-1.0, 1.0]])), []
        if isinstance(order, SendModel):
            return Up(model=Tree({"w": torch.ones(1)}, "net")), []
        if isinstance(order, FeatureDistance):
            return Up(angle=0.5), []
        known = {"all": {"common": order.alike, "main": not self.own}}
        known |= {"own": {"common": False, "main": True}} if self.own else {}
        return Up(served=known, **self.more), [
            {"model": "all", "split": split, "metric": "loss", "value": 0.5}
            for split in order.splits
        ]

    def who(self, kind: type = EvaluateModels) -> list[str]:
        return [client for client, order in self.asked if isinstance(order, kind)]


class Delivering:
    each = False

    def deliver(self, server: Any, state: State, client: str) -> Down:
        return Down(word=client if self.each else "same")


def measuring(
    ask: Any,
    shared: int = 0,
    own: Any = None,
    ending: bool = False,
    rounds: int = 4,
    task: Task = TWO,
    **settings: Any,
) -> Any:
    server = SimpleNamespace(
        ids=list("abc"),
        rounds=rounds,
        task=task,
        load=lambda tree: tree["w"],
        predict=lambda model, on: on.x * model,
        initial=lambda model: Tree({"w": torch.ones(1)}, model),
    )
    given: Any = (
        Delivering(),
        server,
        {"loss": find("loss", task)},
        Evaluation(**settings),
        ask,
        nullcontext,
        shared,
        own,
        ending,
    )
    return Evaluator(*given)


@pytest.mark.parametrize(
    ("number", "every", "finish", "finishes", "phases"),
    [
        (1, 2, False, False, []), (2, 2, False, False, ["received"]), (3, 1, False, False, ["received"]), (3, 0, False, False, []),
        (4, 0, False, False, ["received", "final"]), (4, 3, False, True, ["received"]), (5, 2, True, True, ["final"]),
    ],
)  # fmt: skip
def test_when_models_are_measured_and_what_the_values_are_called(
    number: int, every: int, finish: bool, finishes: bool, phases: list[str]
) -> None:
    ask = Clients(majority=0.5)
    round: Any = SimpleNamespace(
        record=RoundRecord(number, 0, ["b"], [], finish=finish), joined=["c"], uploads=None
    )
    one = measuring(ask, every=every, splits=("test",))
    one.record(State(x=1), round, finishes)
    # who comes late is measured, and nobody else again
    everyone = [] if not phases else ["b"] if finish else list("abc")
    assert ask.who() == everyone and one.ending == ("final" in phases)
    rows = [row for row in round.record.measurements if row[1] != "majority"]
    assert rows == [
        (client, "all", phase, "test", "loss", 0.5) for client in everyone for phase in phases
    ]
    told = [row for row in round.record.measurements if row[1] == "majority"]
    assert told == [
        (client, "majority", "reference", "test", "accuracy", 0.5) for client in everyone
    ]
    assert (
        round.record.main == ("all" if phases else "")
        and 0 <= round.record.seconds["evaluation"] < 60
    )
    assert all(order.ending == ("final" in phases) for _, order in ask.asked)


def test_of_a_cohort_alone_those_who_joined_are_measured() -> None:
    ask = Clients()
    round: Any = SimpleNamespace(record=RoundRecord(1, 0, ["b"], []), joined=["c"], uploads=None)
    measuring(ask, clients="cohort").record(State(x=1), round, False)
    assert ask.who() == ["c"]


@pytest.mark.parametrize(("own", "each", "splits", "asked"), [
    (False, False, ("test",), "abc"), (False, False, (), "a"), (True, False, (), "abc"), (False, True, (), "abc"),
])  # fmt: skip
def test_without_parts_of_their_own_one_client_tells_whether_others_are_needed(
    own: bool, each: bool, splits: Any, asked: str
) -> None:
    ask, labels = Clients(own), samples(torch.zeros(5, 2), [0, 1, 0, 1, 0])
    one = measuring(ask, shared=5, own=labels, splits=splits)
    one.method.each = each
    rows, main = one.clients(State(x=1), list("abc"))
    assert ask.who() == list(asked) and main == ("own" if own else "all")
    assert all(
        order.splits == [*splits, "shared"] and order.alike != each and order.metrics == ["loss"]
        for _, order in ask.asked
        if isinstance(order, EvaluateModels)
    )
    assert ask.who(PredictShared) == ([] if each else ["a"])
    assert len(rows) == len(asked) * (len(splits) + 1) + (not each)


def test_a_model_is_for_all_only_if_every_client_says_so() -> None:
    class Divided(Clients):
        def answer(self, client: str, order: Any) -> Any:
            return Up(served={"all": {"common": client != "b", "main": True}}), []

    ask = Divided()
    measuring(ask, shared=5, own=samples(torch.zeros(5, 2), [0] * 5)).clients(
        State(x=1), list("abc")
    )
    assert ask.who() == list("abc") and not ask.who(PredictShared)


def test_the_shared_test_set_is_cut_into_slices_that_are_put_together_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(evaluation, "SHARED_CHUNK", 4)
    ask, y = Clients(), torch.tensor([0, 1] * 5)
    one = measuring(
        ask, shared=10, own=samples(torch.zeros(10, 2), y), splits=(), curves=False, ending=True
    )
    rows, _ = one.clients(State(x=1), list("abc"))
    slices = [
        (client, order.start, order.stop, order.model)
        for client, order in ask.asked
        if isinstance(order, PredictShared)
    ]
    assert slices == [("a", 0, 4, "all"), ("a", 4, 8, "all"), ("a", 8, 10, "all")]
    logits = np.arange(10.0)[:, None] * np.array([[-1.0, 1.0]])
    expected = float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(10), y]))
    assert rows[-1] == ("all", "all", "shared", "loss", pytest.approx(expected))
    assert one.majority == [("all", "shared", 0.5)] and one.counts == []


@pytest.mark.parametrize("ending", [False, True])
def test_a_server_that_holds_the_test_set_asks_for_the_model(ending: bool) -> None:
    ask, own = Clients(), samples([[0.0, 1.0]] * 30, [1] * 20 + [0] * 10)
    one = measuring(ask, own=own, ending=ending)
    rows, _ = one.clients(State(x=1), list("abc"))
    assert ask.who(SendModel) == ["a"] and rows[-1][:4] == ("all", "all", "shared", "loss")
    assert rows[-1][4] == pytest.approx(np.log(1 + np.e) - 20 / 30)
    assert one.majority == ([("all", "shared", 20 / 30)] if ending else [])
    assert [table[:3] for table in one.counts] == ([("all", "all", "shared")] if ending else [])
    regression = measuring(Clients(), own=samples([[0.0]], [1.0]), ending=True, task=NUMBER)
    regression.clients(State(x=1), ["a"])
    assert not regression.majority and not regression.counts


@pytest.mark.parametrize(
    ("ending", "more", "asked"),
    [
        (False, {}, []),
        (True, {}, ["a", "b", "c"]),
        (True, {"curves": False}, []),
        (True, {"no_curves": ("b",)}, ["a", "c"]),
    ],
)
def test_whose_counts_are_asked_for(ending: bool, more: dict[str, Any], asked: list[str]) -> None:
    ask = Clients()
    measuring(ask, ending=ending, **more).clients(State(x=1), list("abc"))
    assert [client for client, order in ask.asked if order.curves] == asked
    assert all(order.ending == ending for _, order in ask.asked)


@pytest.mark.parametrize(
    ("share", "counts"),
    [
        (1.0, True),
        (1e-9, True),
        (0.0, False),
        (1.01, False),
        (1, False),
        (None, False),
        (float("nan"), False),
    ],
)
def test_a_majority_is_a_share(share: Any, counts: bool) -> None:
    one = measuring(Clients(majority=share), ending=True)
    one.clients(State(x=1), ["a"])
    assert one.majority == ([("a", "test", share)] if counts else [])


@pytest.mark.parametrize(("shared", "split"), [(0, "test"), (7, "shared")])
def test_counts_are_taken_from_those_who_were_asked(shared: int, split: str) -> None:
    table = torch.from_numpy(score_histograms.counted(np.full((30, 2), 0.5), np.zeros(30, int)))
    ask = Clients(curves={"m": table})
    settings = {"shared": shared, "ending": True, "no_curves": ("b",)}
    one = measuring(ask, **settings)
    one.clients(State(x=1), ["a"])
    (taken,) = one.counts
    assert taken[:3] == ("a", "m", split) and torch.equal(taken[3], table)
    unasked = measuring(ask, **settings)
    unasked.clients(State(x=1), ["b"])
    assert "not requested" in unasked.failures["b"]
    ask.more = {"curves": {"m": torch.ones(2, 4, score_histograms.BINS, dtype=torch.int32)}}
    wrong = measuring(ask, **settings)
    wrong.clients(State(x=1), ["a"])
    assert "its counts contradict each other" in wrong.failures["a"]


@pytest.mark.parametrize(
    "up",
    [
        Up(),
        Up(served="all"),
        Up(served={"all": {"common": True}}),
        Up(served={"all": 1}),
    ],
)
def test_an_answer_that_no_client_of_ours_gives_does_not_count(up: Up) -> None:
    one = measuring(lambda orders: [Reply(client, up) for client, _ in orders])
    rows, main = one.clients(State(x=1), ["a"])
    assert (rows, main) == ([], "") and "install the same version" in one.failures["a"]


@pytest.mark.parametrize("sent", [Up(angle="far"), Up(angle=1), Up(metres=1.0)])
def test_distances_of_another_form_do_not_count(sent: Up) -> None:
    class Far(Clients):
        def answer(self, client: str, order: Any) -> Any:
            return (sent if client == "a" else Up(angle=0.5)), []

    tree = Tree({"w": torch.tensor([1.0, 2.0])}, "net")
    models = {"a": tree, "b": tree}
    cohort: Any = SimpleNamespace(record=RoundRecord(1, 0, [], []), joined=[], local_models=models)
    one = measuring(Far(), distances=True, clients="cohort")
    one.record(State(model=tree), cohort, False)
    assert {row[0] for row in cohort.record.measurements} == {"b"} and set(one.failures) == {"a"}


@pytest.mark.parametrize(
    "served", [{"a\nb": {"common": True, "main": True}}, {"a": {"common": "yes", "main": True}}]
)
def test_models_of_another_form_do_not_count(served: Any) -> None:
    one = measuring(lambda orders: [Reply(client, Up(served=served)) for client, _ in orders])
    assert one.clients(State(x=1), ["a"]) == ([], "") and "another form" in one.failures["a"]


@pytest.mark.parametrize("row", [{"model": "other"}, {"split": "train"}, {"metric": "auroc"}])
def test_values_that_were_not_requested_do_not_count(row: dict[str, str]) -> None:
    class Talkative(Clients):
        def answer(self, client: str, order: Any) -> Any:
            up, rows = super().answer(client, order)
            return up, [*rows, {**rows[0], **row}] if client == "b" else rows

    one = measuring(Talkative())
    rows, _ = one.clients(State(x=1), list("abc"))
    assert {client for client, *_ in rows} == {"a", "c"} and set(one.failures) == {"b"}


def test_requests_and_answers_are_the_same_after_they_travelled() -> None:
    for request in (
        EvaluateModels(Down(x=1), ["test"], ["loss"], True),
        EvaluateModels(Down(x=1), [], [], False, ending=True, curves=True),
        PredictShared(Down(), "global", 0, 5),
        SendModel(Down(), "global"),
        CheckState(),
    ):
        record = unpack(bytearray(b"".join(pack(request.record()))))
        assert type(request).of(record) == request
    up = asked(Serving(own=1.0), ending=True, curves=True)[0]
    told = ModelsEvaluated.of(unpack(bytearray(b"".join(pack(up)))))
    assert told.served["own"].main and told.majority == 0.75 and set(told.curves) == {"own"}


@pytest.mark.parametrize(
    ("sent", "said"),
    [
        ({"m": {"auroc": 1.2}}, "auroc: expected a share from 0 to 1, got 1.2"),
        ({"m": {"auroc": float("nan")}}, "auroc: expected a share"),
        ({"m": {"auroc": True}}, "auroc: expected a share"),
        ({"m": {"accuracy": 0.5}}, "'accuracy' is not among"),
        ({"other": {"auroc": 0.5}}, "'other' has no histogram"),
        ({"m": 0.5}, "expected clinical measures by name"),
    ],
)
def test_clinical_measures_of_strangers_are_checked(sent: Any, said: str) -> None:
    table = torch.from_numpy(score_histograms.counted(np.full((30, 2), 0.5), np.zeros(30, int)))
    for clinical in ({"m": {"auroc": 0.75}}, sent):
        one = measuring(Clients(curves={"m": table}, clinical=clinical), ending=True)
        one.clients(State(x=1), ["a"])
        if clinical is sent:
            assert said in one.failures["a"]
        else:
            assert one.clinical == [("a", "m", "test", "auroc", 0.75)]


def test_distances_are_those_of_local_models_to_the_new_model() -> None:
    trees = {
        name: Tree({"w": torch.tensor([1.0, value])}, "net")
        for name, value in {"a": 0.0, "c": 2.0, "new": 1.0}.items()
    }
    ask = Clients()
    models = {"a": trees["a"], "c": trees["c"]}
    round: Any = SimpleNamespace(record=RoundRecord(1, 0, [], []), joined=[], local_models=models)
    only = {"distances": True, "clients": "cohort"}
    measuring(ask, **only).record(State(model=trees["new"]), round, False)
    assert [(client, order.local, order.new) for client, order in ask.asked] == [
        ("a", trees["a"], trees["new"]),
        ("c", trees["c"], trees["new"]),
    ]
    found = {
        (client, split, metric): value
        for client, _, _, split, metric, value in round.record.measurements
    }
    assert found == pytest.approx(
        {
            ("a", "parameters", "angle"): np.pi / 4,
            ("a", "parameters", "manhattan"): 1.0,
            ("a", "embedding", "angle"): 0.5,
            ("c", "parameters", "angle"): np.arccos(3 / np.sqrt(10)),
            ("c", "parameters", "manhattan"): 1.0,
            ("c", "embedding", "angle"): 0.5,
        }
    )
    assert {row[1:3] for row in round.record.measurements} == {("local", "after_local")}
    for state, own in ((State(x=1), models), (State(model=trees["new"]), {})):
        ask, round.local_models = Clients(), own
        measuring(ask, **only).record(state, round, False)
        assert not ask.asked


@pytest.mark.parametrize(("number", "every", "due"), [(1, 2, 0), (2, 2, 1), (3, 0, 0), (4, 0, 1)])
def test_distances_are_measured_in_the_rounds_that_are_measured(
    number: int, every: int, due: int
) -> None:
    ask, tree = Clients(), Tree({"w": torch.tensor([1.0, 2.0])}, "net")
    round: Any = SimpleNamespace(
        record=RoundRecord(number, 0, [], []), joined=[], local_models={"a": tree}
    )
    measuring(ask, distances=True, every=every, clients="cohort").record(
        State(model=tree), round, False
    )
    assert len(ask.who(FeatureDistance)) == due


@pytest.mark.parametrize(("one", "other", "same"), [
    ({"x": 1}, {"x": 1}, True), ({"x": 1}, {"x": 2}, False), ({"x": 1}, {"y": 1}, False), ({"x": 1}, {"x": 1, "y": 1}, False),
    ({"x": torch.ones(2)}, {"x": torch.ones(2)}, True), ({"x": torch.ones(2)}, {"x": torch.zeros(2)}, False), ({"x": torch.ones(1)}, {"x": 1.0}, False),
    ({"x": 1.0}, {"x": torch.ones(1)}, False), ({"x": [1, [2]]}, {"x": [1, [2]]}, True), ({"x": [1, 2]}, {"x": [1]}, False), ({"x": [1, 2]}, {"x": [1, 3]}, False),
    ({"x": {"y": 1}}, {"x": {"y": 2}}, False), ({"x": [1]}, {"x": 1}, False),
])  # fmt: skip
def test_whether_all_were_delivered_the_same(one: Any, other: Any, same: bool) -> None:
    assert alike([Down(one), Down(one), Down(other)]) == alike([Down(other), Down(one)]) == same
    assert alike([]) and alike([Down(one)])


@pytest.mark.parametrize(
    ("main", "test", "shared", "refused"),
    [
        ("auroc", {"a": 1, "b": 1}, 0, True),
        ("auroc", {"a": 2, "b": 1}, 0, False),
        ("auroc", {"a": 2}, 1, True),
        ("auroc", {"a": 1}, 2, False),
        ("accuracy", {"a": 1}, 0, False),
        ("auroc", {"a": 0, "b": 0}, 0, False),
    ],
)
def test_a_main_metric_that_would_exist_for_nobody_is_refused(
    main: str, test: dict[str, int], shared: int, refused: bool
) -> None:
    roster: Any = SimpleNamespace(
        task=TWO, classes={"test": test}, shared=shared, shared_classes=shared
    )
    expected = pytest.raises(ValueError, match="evaluation.main: auroc needs samples of two")
    with expected if refused else nullcontext():
        check_main(Evaluation(main=main), roster)
