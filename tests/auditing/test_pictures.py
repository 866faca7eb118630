"""What the pictures of an audit show is what was found."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest
from matplotlib.figure import Figure

import equipoise as eq
from equipoise.auditing import Findings, pictures
from equipoise.auditing.divergence import chance


@lru_cache
def findings(clients: int) -> Findings:
    """Clients of 12, 42, 72, 12, ... samples of three classes; some lack one."""
    draw = np.random.default_rng(0)
    sizes = [15 + 40 * (k % 3) for k in range(clients)]
    data = {
        f"c{k}": (draw.normal(k % 5, 1, size=(n, 3)), draw.integers(0, 3 if k % 2 else 2, n))
        for k, n in enumerate(sizes)
    }
    return eq.audit({"dataset": eq.from_sites(data), "workers": 0})


@pytest.mark.parametrize("clients", [4, 300])
def test_sizes_fall_from_left_to_right(clients: int) -> None:
    found = findings(clients)
    (axes,) = pictures.by_size(found).axes
    largest = sorted([row.samples for row in found.clients], reverse=True)
    if clients == 4:
        assert [bar.get_height() for bar in axes.patches] == largest
        assert [bar.get_x() + bar.get_width() / 2 for bar in axes.patches] == pytest.approx(
            range(4)
        )
    else:
        corners = axes.collections[0].get_paths()[0].vertices
        assert (
            corners[:, 0].min() == 1
            and corners[:, 0].max() == clients
            and corners[:, 1].max() == largest[0]
        )
        assert max(y for x, y in corners if x >= clients - 1) == largest[-1]
    assert axes.get_ylim()[0] == 0


def test_bubbles_stand_where_a_client_has_a_label_and_grow_with_its_samples() -> None:
    found = findings(4)
    (axes,) = pictures.labels(found).axes
    (bubbles,) = axes.collections
    where = {
        tuple(map(int, place)): size
        for place, size in zip(bubbles.get_offsets(), bubbles.get_sizes(), strict=True)
    }
    assert set(where) == {
        (client, label) for client, label in np.ndindex(4, 3) if found.counts[client, label]
    }
    for place, size in where.items():
        assert size / max(where.values()) == pytest.approx(found.counts[place] / found.counts.max())
    assert [text.get_text() for text in axes.get_yticklabels()] == list(found.classes)


def test_many_clients_are_an_image_of_their_label_shares() -> None:
    found = findings(300)
    axes = pictures.labels(found).axes[0]
    shown = np.asarray(axes.images[0].get_array())
    shares = 100 * found.counts / found.counts.sum(1, keepdims=True)
    assert shown.shape == (3, 300)
    assert sorted(map(tuple, shown.T.round(6))) == sorted(map(tuple, shares.round(6)))
    assert (np.diff(shown.argmax(0)) >= 0).all()  # by their most frequent label


@pytest.mark.parametrize("clients", [4, 300])
def test_the_map_has_a_point_for_every_client_at_its_place(clients: int) -> None:
    found = findings(clients)
    axes = pictures.chart(found).axes[0]
    points, middle = axes.collections
    assert np.asarray(points.get_offsets()) == pytest.approx(
        np.array([row.place for row in found.clients])
    )
    assert middle.get_offsets().tolist() == [[0, 0]]
    sizes = np.array([row.samples for row in found.clients])
    assert (np.argsort(points.get_sizes(), kind="stable") == np.argsort(sizes, kind="stable")).all()


@pytest.mark.parametrize("clients", [4, 300])
def test_kl_against_size_beside_what_chance_would_show(clients: int) -> None:
    found = findings(clients)
    axes = pictures.kl_against_size(found).axes[0]
    told = [(row.samples, row.kl) for row in found.clients if row.kl is not None]
    assert np.asarray(axes.collections[0].get_offsets()) == pytest.approx(np.array(told))
    sizes, by_chance = axes.lines[0].get_data()
    assert (
        (np.diff(sizes) > 0).all()
        and sizes[0] >= max(found.dimensions, int(min(told)[0] / 1.1))
        and sizes[-1] == int(1.1 * max(told)[0])
    )
    assert by_chance == pytest.approx([chance(int(n), found.dimensions) for n in sizes])


@pytest.mark.parametrize("seed", range(4))
def test_names_cover_neither_points_nor_each_other(seed: int) -> None:
    draw = np.random.default_rng(seed)
    figure = Figure(figsize=(6, 4), dpi=216)
    axes = figure.add_subplot()
    axes.set(xlim=(0, 1), ylim=(0, 1))
    points, radii, line = (
        draw.uniform(0.05, 0.95, (24, 2)),
        np.full(24, 11.0),
        np.array([[0.2, 0.6], [0.8, 0.3]]),
    )
    pictures.label_points(
        axes, points, [f"client {k}" for k in range(24)], np.arange(24), radii, line, 6.0
    )
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts}
    assert 5 <= len(boxes) < 24, "some find no room"
    for place in range(24):
        if f"client {place}" not in boxes:
            continue
        own, axis = boxes[f"client {place}"], axes.get_window_extent()
        assert axis.x0 <= own.x0 and own.x1 <= axis.x1 and axis.y0 <= own.y0 and own.y1 <= axis.y1
        assert not any(
            own.overlaps(box) for name, box in boxes.items() if name != f"client {place}"
        )
        others = [(at, 11) for k, at in enumerate(points) if k != place] + [(at, 6) for at in line]
        for at, radius in others:
            x, y = axes.transData.transform(at)
            wide = radius * 216 / 72
            assert (
                own.x1 <= x - wide or own.x0 >= x + wide or own.y1 <= y - wide or own.y0 >= y + wide
            )
