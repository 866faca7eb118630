"""The command line called in this process: its exit code and what it printed to standard error."""

from __future__ import annotations

import sys

import pytest

from equipoise.cli import main


class CommandLine:
    """Calls `equipoise` with words, as a user types them."""

    def __init__(self, capture: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capture, self.patch = capture, patch
        self.printed = ""

    def __call__(self, *words: object) -> tuple[object, str]:
        self.patch.setattr(sys, "argv", ["equipoise", *map(str, words)])
        self.capture.readouterr()
        try:
            main()
            code: object = 0
        except SystemExit as end:
            code = end.code or 0
        captured = self.capture.readouterr()
        self.printed = captured.out
        return code, captured.err


def one_sentence(answer: tuple[object, str]) -> str:
    """Check that a command ended with one sentence and no traceback; returns the sentence."""
    code, said = answer
    assert code == 2, said
    assert said.startswith("error: ") and said.count("\n") == 1 and len(said) < 800, said
    assert "Traceback" not in said
    return said
