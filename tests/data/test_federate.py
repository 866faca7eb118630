"""From a data section to a federation, on data without files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from equipoise.data import (
    DataConfig,
    Dataset,
    Parts,
    federate,
    from_arrays,
    from_sites,
    inputs_from,
)
from equipoise.data.splits import equal_samples


def pictures(n: int = 60, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    part = np.where(np.arange(n) % 5 == 4, 2, 0)
    return from_arrays(rng.integers(0, 256, (n, 6, 6), dtype=np.uint8), np.arange(n) % 3, part=part)


def test_parts_keep_empty_clients_and_refuse_places_outside() -> None:
    parts = Parts.of([np.array([3, 1]), np.array([], int), np.array([2])])
    assert [p.tolist() for p in parts] == [[3, 1], [], [2]]
    assert parts.owners.tolist() == [0, 0, 2]
    assert [p.tolist() for p in parts.where(np.array([False, True, True]))] == [[1], [], [2]]
    with pytest.raises(IndexError, match=r"outside 0\.\.2"):
        parts[3]
    with pytest.raises(ValueError, match="read-only"):
        parts.index[0] = 7


def test_digits_arrive_whole_scaled_and_split() -> None:
    federation = federate(DataConfig(clients=10), seed=1)
    assert federation.ids == tuple("0123456789")
    assert federation.x.dtype == torch.float32
    assert (float(federation.x.min()), float(federation.x.max())) == (0.0, 1.0)
    everything = np.concatenate(
        [federation.train.index, federation.validation.index, federation.test.index]
    )
    assert np.array_equal(np.sort(everything), np.arange(1797))
    assert len(federation.shared_test) == 0
    json.dumps([federation.metadata, federation.recipe])


def test_the_same_seed_gives_the_same_federation_and_another_does_not() -> None:
    config = DataConfig(partition="dirichlet:0.5", clients=4)
    one, same, other = federate(config, 1), federate(config, 1), federate(config, 2)
    assert np.array_equal(one.train.index, same.train.index)
    assert not np.array_equal(one.train.index, other.train.index)


def test_only_rows_that_somebody_holds_are_kept_and_labels_follow() -> None:
    data = pictures()
    federation = federate(DataConfig(partition="pow", clients=3), 1, data)
    assert len(federation.x) == 30
    assert torch.equal(federation.x, data.x[federation.source].float() / 255)
    assert torch.equal(federation.y, data.y[federation.source])


def test_a_shared_test_set_is_the_official_one_and_no_client_has_it() -> None:
    data = pictures()
    federation = federate(DataConfig(test="global", clients=3, split=(0.8, 0.2, 0.0)), 1, data)
    assert np.array_equal(federation.source[federation.shared_test], np.flatnonzero(data.part == 2))
    held = np.concatenate([federation.train.index, federation.validation.index])
    assert len(held) == 48
    assert not set(held) & set(federation.shared_test)
    assert federation.test.sizes.sum() == 0
    with pytest.raises(ValueError, match="would train on it"):
        federate(DataConfig(test="global", pool="all"), 1, data)


def test_a_federation_tells_whose_samples_clients_are_tested_on() -> None:
    """Verdicts of studies need it: the error of a test set that all seeds share is not averaged."""
    official = pictures()
    plain = from_arrays(np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 5)
    own = replace(official, keeps_parts=True)  # as a user's folder with train and test
    cases = [
        (plain, "local", "local"),
        (plain, "global", "drawn"),
        (official, "local", "local"),
        (official, "global", "global"),
        (own, "local", "global"),
    ]
    for data, asked, expected in cases:
        assert federate(DataConfig(clients=2, test=asked), 1, data).metadata["test"] == expected


def test_without_an_official_split_a_shared_test_set_is_set_aside() -> None:
    data = from_arrays(np.random.default_rng(0).normal(size=(50, 2)), np.arange(50) % 5)
    federation = federate(DataConfig(test="global", clients=2), 1, data)
    assert len(federation.shared_test) == 10
    assert torch.bincount(federation.y[federation.shared_test]).tolist() == [2] * 5
    assert federation.train.sizes.tolist() == [18, 18]  # 7/8 of 20 each, validation rounded down
    with pytest.raises(ValueError, match="give split a test share"):
        federate(DataConfig(test="global", split=(0.9, 0.1, 0.0)), 1, data)


def test_sites_can_be_tested_on_their_own_official_test_part() -> None:
    rng = np.random.default_rng(0)
    part = np.tile([0, 0, 0, 2], 10)
    data = from_arrays(
        rng.integers(0, 256, (40, 6, 6), dtype=np.uint8),
        np.arange(40) % 2,
        sites=["a"] * 20 + ["b"] * 20,
        part=part,
    )
    federation = federate(
        DataConfig(partition="domains", clients=4, test="site", split=(1, 0, 0)), 1, data
    )
    for domain, test in zip(federation.metadata["domains"], federation.test, strict=True):
        wanted = np.flatnonzero(part == 2)
        assert federation.source[test].tolist() == [
            i for i in wanted if (i < 20) == (domain == "a")
        ]
    with pytest.raises(ValueError, match="official test parts of sites"):
        federate(DataConfig(test="site"), 1, pictures())


def test_pool_train_leaves_official_test_and_validation_out() -> None:
    data = pictures()
    assert len(federate(DataConfig(pool="train", clients=2), 1, data).x) == 48
    with pytest.raises(ValueError, match="needs an official split"):
        federate(DataConfig(pool="train"), 1)


def test_equal_pictures_stay_on_one_side_even_across_clients() -> None:
    rng = np.random.default_rng(0)
    x = np.repeat(rng.integers(0, 256, (40, 4, 4), dtype=np.uint8), 2, axis=0)
    data = from_arrays(x, np.arange(80) % 2)
    federation = federate(DataConfig(clients=4, split=(0.5, 0.0, 0.5)), 1, data)
    train, test = (
        {federation.x[i].numpy().tobytes() for i in part.index}
        for part in (federation.train, federation.test)
    )
    assert not train & test
    assert len(test) > 10
    assert federation.metadata["equal_samples"] == 40
    apart = federate(DataConfig(clients=4, split=(0.5, 0.0, 0.5), duplicates="separate"), 1, data)
    assert apart.test.sizes.tolist() == [10] * 4


def test_equal_rows_of_numbers_count_only_with_equal_labels() -> None:
    data = from_arrays(np.ones((3, 2)), [0, 1, 0])
    assert equal_samples(data).tolist() == [0, 1, 0]


def test_data_that_are_mostly_equal_are_refused_with_the_way_out() -> None:
    data = from_arrays(np.ones((10, 2)), np.zeros(10, int))
    with pytest.raises(ValueError, match="duplicates: separate"):
        federate(DataConfig(clients=2), 1, data)
    assert federate(DataConfig(clients=2, duplicates="separate"), 1, data).test.sizes.tolist() == [
        1,
        1,
    ]


def test_one_sample_and_one_client() -> None:
    data = from_sites(
        {
            "tiny": (np.ones((1, 2)), [0]),
            "large": (np.arange(40.0).reshape(20, 2), np.arange(20) % 2),
        }
    )
    federation = federate(DataConfig(), 1, data)
    assert federation.ids == ("tiny", "large")
    assert federation.train.sizes.tolist() == [1, 14]
    assert federation.test.sizes.tolist() == [0, 4]
    assert len(federate(DataConfig(partition="iid", clients=1), 1, data).ids) == 1


def test_server_validation_is_the_union_of_the_clients_validation_parts() -> None:
    federation = federate(DataConfig(clients=3), 1)
    assert np.array_equal(federation.server_validation, np.sort(federation.validation.index))


def test_a_validation_set_of_the_server_belongs_to_no_client_and_has_every_class() -> None:
    federation = federate(DataConfig(clients=3, server_validation=0.1), 1)
    clients = (federation.train, federation.validation, federation.test)
    owned = set(federation.source[np.concatenate([part.index for part in clients])].tolist())
    own = federation.source[federation.server_validation]
    assert len(own) == len(federation.y) // 10
    assert not owned & set(own.tolist())
    assert len(owned) + len(own) == len(federation.y)
    assert len(federation.y[federation.server_validation].unique()) == 10


def test_the_validation_set_of_the_server_follows_the_seed_and_not_the_partition() -> None:
    rows = []
    for seed, partition in ((1, "iid"), (1, "dirichlet:0.3"), (2, "iid")):
        config = DataConfig(clients=3, partition=partition, server_validation=0.1)
        federation = federate(config, seed)
        rows.append(set(federation.source[federation.server_validation].tolist()))
    assert rows[0] == rows[1] != rows[2]


def test_equal_samples_are_not_both_in_the_set_of_the_server_and_at_a_client() -> None:
    x = np.repeat(np.arange(40.0).reshape(40, 1), 2, axis=0)
    config = DataConfig(partition="iid", clients=2, server_validation=0.2, normalise="none")
    federation = federate(config, 1, from_arrays(x, np.arange(80) // 2 % 2))
    own = set(federation.x[federation.server_validation].flatten().tolist())
    others = np.setdiff1d(np.arange(len(federation.x)), federation.server_validation)
    assert own and not own & set(federation.x[others].flatten().tolist())


def test_a_table_with_a_validation_set_of_the_server_is_scaled_over_all_clients(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(0)
    for site in ("north", "south"):
        lines = [f"{rng.normal(5, 2):.3f},{rng.normal():.3f},{k % 2}" for k in range(20)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,weight,ill", *lines]) + "\n")
    config = DataConfig(name=str(tmp_path), label="ill", server_validation=0.2)
    federation = federate(config, 1)
    assert federation.recipe["scaling"] == "pooled"
    assert len(federation.x[federation.server_validation]) == 8
    with pytest.raises(ValueError, match="normalise: client"):
        federate(config.model_copy(update={"normalise": "client"}), 1)


def test_a_share_that_holds_no_sample_and_sites_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="server_validation"):
        federate(DataConfig(clients=2, server_validation=0.0001), 1)
    with pytest.raises(ValueError, match="server_validation: 0.1"):
        DataConfig(apart=True, server_validation=0.1)


def test_grades_can_be_numbers() -> None:
    federation = federate(DataConfig(task="regression", clients=2), 1)
    assert federation.task.kind == "regression"
    assert federation.task.outputs == 1
    assert federation.y.dtype == torch.float32
    assert "label_distance" not in federation.metadata


def test_images_are_resized_and_normalised_and_new_ones_go_the_same_way() -> None:
    data = pictures()
    federation = federate(DataConfig(image_size=4, normalise="half", clients=2), 1, data)
    assert federation.task.shape == (1, 4, 4)
    assert -1 <= float(federation.x.min()) < -0.5
    assert torch.equal(
        inputs_from(data.x.numpy()[federation.source], federation.recipe), federation.x
    )
    with pytest.raises(ValueError, match="whole-number pixels"):
        inputs_from(np.zeros((1, 1, 4, 4), np.float32), federation.recipe)
    with pytest.raises(ValueError, match="images with 3 channels"):
        federate(DataConfig(normalise="imagenet", clients=2), 1, data)


def test_settings_that_do_not_fit_the_data_are_refused() -> None:
    numbers = from_arrays(np.arange(40.0).reshape(20, 2), np.arange(20) % 2)
    with pytest.raises(ValueError, match="is for tables"):
        federate(DataConfig(normalise="client", clients=2), 1, numbers)
    with pytest.raises(ValueError, match="is for images"):
        federate(DataConfig(augment=("flip",), clients=2), 1, numbers)
    with pytest.raises(ValueError, match="is for images"):
        federate(DataConfig(image_size=8, clients=2), 1, numbers)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nam": "digits"}, "Extra inputs"),
        ({"partition": "dirichlt:1"}, "did you mean 'dirichlet'"),
        ({"normalise": "imagnet"}, "did you mean 'imagenet'"),
        ({"augment": ("flipp",)}, "did you mean 'flip'"),
        ({"split": (0.5, 0.1, 0.2)}, "add up to 1"),
        ({"split": (0.0, 0.5, 0.5)}, "positive first"),
        ({"clients": 0}, "greater than or equal to 1"),
    ],
)
def test_wrong_settings_are_refused_with_a_hint(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DataConfig(**wrong)  # type: ignore[arg-type]


def test_ten_thousand_clients_share_one_array() -> None:
    data = from_arrays(np.random.default_rng(0).normal(size=(30_000, 2)), np.arange(30_000) % 10)
    federation = federate(DataConfig(clients=10_000), 1, data)
    assert len(federation.ids) == 10_000
    assert (
        federation.train[9_999].base is federation.train.index
        or federation.train[9_999].base is federation.train.index.base
    )
    assert federation.x.shape == (30_000, 2)


def test_a_number_of_samples_is_drawn_from_the_seed() -> None:
    drawn = [
        federate(DataConfig(name="digits", samples=200, clients=4), seed) for seed in (1, 1, 2)
    ]
    assert [
        sum(len(part) for parts in (f.train, f.validation, f.test) for part in parts) for f in drawn
    ] == [200, 200, 200]
    assert (drawn[0].source == drawn[1].source).all() and not (
        drawn[0].source == drawn[2].source
    ).all()


def test_equal_samples_are_found_by_their_bytes_also_where_products_meet_by_chance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 9 bytes: padded, and not contiguous
    rows = np.random.default_rng(0).integers(0, 2, (200, 1, 3, 5)).astype(np.uint8)[:, :, :, :3]
    first: dict[bytes, int] = {}
    expected = [first.setdefault(row.tobytes(), place) for place, row in enumerate(rows)]
    data = from_arrays(rows, np.zeros(200, int))
    assert equal_samples(data).tolist() == expected

    class Blind:
        def integers(self, *_: object, size: int, **__: object) -> np.ndarray:
            # times two plus one: all factors are the largest number, so orders do not matter
            return np.full(size, 2**63 - 1, np.uint64)

    monkeypatch.setattr("equipoise.data.splits.stream", lambda *_: Blind())
    assert equal_samples(data).tolist() == expected
