"""Messages between our own processes: whole, small or large, and memory that is used again once no
one looks at it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest
import torch

from equipoise.records import Down, Record, Up, pack, unpack
from equipoise.runtime import wire
from equipoise.runtime.messages import Reply, Request, StateRef
from equipoise.transports.workers import sockets
from equipoise.tree import Tree

LARGE = sockets._IN_LINE  # numbers of four bytes: four times what goes in line

maps_memory = pytest.mark.skipif(
    not sockets._MAPS_MEMORY, reason="this system has no memfd_create: all messages go in line"
)


@pytest.fixture
def line() -> Iterator[tuple[sockets.Sender, sockets.Receiver]]:
    here, there = socket.socketpair()
    with here, there:
        yield sockets.Sender(here), sockets.Receiver(there)


def record(fill: float, count: int) -> Record:
    odd = torch.arange(3, dtype=torch.uint8)  # three bytes: what follows is not aligned by itself
    return Record(
        odd=odd,
        double=torch.full((2, 1), fill, dtype=torch.float64),
        up=Up(model=Tree({"w": torch.full((count,), fill)})),
    )


@pytest.mark.parametrize("count", [0, 1, LARGE])
def test_a_record_arrives_whole(line: tuple[sockets.Sender, sockets.Receiver], count: int) -> None:
    sender, receiver = line
    for fill in (1.0, 2.0, 3.0):
        sender.send(record(fill, count))
        got = receiver.receive()
        assert torch.equal(got.odd, torch.arange(3, dtype=torch.uint8))
        assert torch.equal(got.double, torch.full((2, 1), fill, dtype=torch.float64))
        assert isinstance(got.up, Up) and torch.equal(got.up.model["w"], torch.full((count,), fill))


@maps_memory
def test_memory_in_use_is_never_written_again(
    line: tuple[sockets.Sender, sockets.Receiver],
) -> None:
    sender, receiver = line
    sender.send(record(1.0, LARGE))
    kept = receiver.receive().up.model["w"][5:7]  # a view of a view: the record itself is gone
    for fill in (2.0, 3.0, 4.0):
        sender.send(record(fill, LARGE))
        assert float(receiver.receive().up.model["w"][0]) == fill
        sender.take_back(receiver.returned())
        assert kept.tolist() == [1.0, 1.0]


@maps_memory
def test_memory_without_readers_is_used_again(
    line: tuple[sockets.Sender, sockets.Receiver],
) -> None:
    sender, receiver = line
    descriptors = len(os.listdir("/proc/self/fd"))
    for fill in range(20):
        sender.send(record(float(fill), LARGE))
        receiver.receive()
        sender.take_back(receiver.returned())
    assert len(sender._memories) == 1 and receiver.returned() == []
    # a cohort of thousands must not run out of them
    assert len(os.listdir("/proc/self/fd")) == descriptors


@maps_memory
def test_memory_far_too_large_for_a_message_waits_for_another(
    line: tuple[sockets.Sender, sockets.Receiver],
) -> None:
    sender, receiver = line
    for count in (8 * LARGE, LARGE, 8 * LARGE, LARGE):
        sender.send(record(1.0, count))
        assert len(receiver.receive().up.model["w"]) == count
        sender.take_back(receiver.returned())
    assert len(sender._memories) == 2


def test_what_the_receiver_changes_does_not_come_back_in_a_later_message(
    line: tuple[sockets.Sender, sockets.Receiver],
) -> None:
    sender, receiver = line
    for fill in (1.0, 2.0):
        sender.send(record(fill, LARGE))
        weights = receiver.receive().up.model["w"]
        assert torch.equal(weights, torch.full((LARGE,), fill))
        weights.zero_()
        del weights
        sender.take_back(receiver.returned())


def test_a_frame_that_comes_in_pieces_is_read_whole() -> None:
    here, there = socket.socketpair()
    with here, there:
        sent: list[bytes] = []

        class Slow:
            def sendall(self, data: bytes) -> None:
                sent.append(data)

        sockets.Sender(Slow()).send(record(1.0, 1))  # type: ignore[arg-type]
        thread = threading.Thread(
            target=lambda: [
                here.sendall(sent[0][place : place + 7]) for place in range(0, len(sent[0]), 7)
            ]
        )
        thread.start()
        assert sockets.Receiver(there).receive().up.model["w"].tolist() == [1.0]
        thread.join()


def test_the_end_of_a_connection_is_said() -> None:
    here, there = socket.socketpair()
    with there:
        here.close()
        with pytest.raises(EOFError):
            sockets.Receiver(there).receive()


def test_a_tree_that_is_sent_once_stands_where_it_was_and_nothing_passes_for_it() -> None:
    tree, own = Tree({"w": torch.ones(2)}, "net"), Tree({}, "net")
    down = Down(model=tree, all=[tree, own], mine={"@tree": "0", "shared": "$shared 0"})
    sent = wire.mapped(down, lambda found: wire.reference("0") if found is tree else found)
    assert not any(found is tree for found in wire.trees_in(sent))
    got = wire.resolved(unpack(bytearray(b"".join(pack(sent)))), {"0": tree})
    assert (
        isinstance(got, Down)
        and got.model is tree
        and got.all[0] is tree
        and (got.all[1].model, len(got.all[1])) == ("net", 0)
    )
    assert got.mine == {"@tree": "0", "shared": "$shared 0"}


@maps_memory
@pytest.mark.parametrize(
    "frame",
    [(2**63, 0), (sockets._IN_LINE + 1, 0), (64, 5)],
    ids=["8 exabytes", "too long for the line", "unknown memory"],
)
def test_a_frame_that_no_sender_sends_is_refused_before_memory_is_taken(
    frame: tuple[int, int],
) -> None:
    here, there = socket.socketpair()
    with here, there:
        here.sendall(sockets._FRAME.pack(*frame))
        with pytest.raises(ValueError, match="a message"):
            sockets.Receiver(there).receive()


def test_a_mapping_in_a_request_is_a_record() -> None:
    request = Request("ada", "client", {"x": [1]}, 1, 1)  # type: ignore[arg-type]
    assert isinstance(request.down, Down) and request.down.x == [1]
    with pytest.raises(TypeError, match="x: expected a tree"):
        Request("ada", "client", {"x": object()}, 1, 1)  # type: ignore[arg-type]


def test_requests_and_replies_survive_their_short_form() -> None:
    request = Request(
        "ada",
        "client",
        Record(),
        3,
        9,
        attempt=1,
        state=("s-r2a0x1", "d"),
        after={"splits": ["test"], "metrics": ["accuracy"]},
    )
    assert wire.request_of(wire.to_wire(request), request.down) == request
    reply = Reply(
        "ada",
        Up(),
        StateRef("s-r3a1x1", 7, "d"),
        failure="",
        seconds=0.5,
        steps=4,
        measured=[{"split": "test"}],
    )
    assert wire.reply_of(wire.to_wire(reply), reply.up) == reply
    assert set(wire.to_wire(Reply("ada", Up()))) == {"client"}
