"""FLARE's client prints nothing, and what others print is not lost."""

from __future__ import annotations

import sys
import threading

import pytest

from equipoise.transports.nvflare.silence import flare_is_silent


def test_only_the_thread_in_the_block_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    entered = threading.Event()
    printed = threading.Event()

    def talk_to_flare() -> None:
        with flare_is_silent():
            print("connecting")
            entered.set()
            assert printed.wait(30)
            print("failed", file=sys.stderr)

    thread = threading.Thread(target=talk_to_flare)
    thread.start()
    assert entered.wait(30)
    print("the server has started")
    printed.set()
    thread.join()
    answer = capsys.readouterr()
    assert answer.out == "the server has started\n" and answer.err == ""


def test_blocks_that_overlap_leave_the_streams_as_they_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = sys.stdout, sys.stderr
    first_entered = threading.Event()
    second_entered = threading.Event()

    def first() -> None:
        with flare_is_silent():
            first_entered.set()
            assert second_entered.wait(30)

    thread = threading.Thread(target=first)
    thread.start()
    assert first_entered.wait(30)
    with flare_is_silent():
        second_entered.set()
        thread.join()  # the block that began first ends first
    assert (sys.stdout, sys.stderr) == before
    print("done")
    assert capsys.readouterr().out == "done\n"


def test_a_block_within_a_block_stays_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with flare_is_silent():
        with flare_is_silent():
            pass
        print("connecting")
    assert capsys.readouterr().out == ""
