"""The order of a scientist to a server: which run to begin or to continue, and at which sites."""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from equipoise.experiment import ConfigurationError
from equipoise.version import __version__

Action = Literal["run", "deliver", "stop"]
_RUN = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class RunOrder:
    """An order to a server to begin or continue a run.

    Attributes:
        run: The identifier of the run, 32 hexadecimal digits. A server that has this run continues
            it.
        experiment: The experiment as plain data.
        sites: The names of the sites that take part, in the order of the clients.
        from_round: Go back to the checkpoint of this round.
        action: "run" to begin or continue the run, "deliver" to fetch it as it is, "stop" to end
            the job that another person submitted for it.
        restarted: Sites that have lost their states and begin afresh; a job of the run that is in
            progress ends first.
        version: The version of Equipoise of the scientist.
    """

    run: str
    experiment: Mapping[str, Any]
    sites: tuple[str, ...]
    from_round: int | None = None
    action: Action = "run"
    restarted: tuple[str, ...] = ()
    version: str = __version__

    def text(self) -> str:
        """Return the order as letters and digits, which FLARE passes on unchanged.

        FLARE replaces names in braces in the settings of a job, and builds objects from parts that
        look like components.
        """
        return base64.urlsafe_b64encode(json.dumps(asdict(self)).encode()).decode()

    @classmethod
    def of(cls, text: str) -> RunOrder:
        """Return the order in a text, which may come from a stranger.

        Raises:
            ConfigurationError: If it is malformed, or of another version.
        """
        try:
            values = json.loads(base64.urlsafe_b64decode(text))
            lists = {name: tuple(values[name]) for name in ("sites", "restarted")}
            order = cls(**{**values, **lists})
        except (binascii.Error, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ConfigurationError(
                f"expected an order to begin a run, got something else ({error}); "
                "submit the run with `equipoise run --network`"
            ) from None
        order.check()
        return order

    def check(self) -> None:
        """Refuse an order of another form or version.

        Raises:
            ConfigurationError: With the first thing that is wrong.
        """
        if self.version != __version__:
            raise ConfigurationError(
                f"expected an order of equipoise {__version__}, as the server has it, got one of "
                f"{self.version!r:.40}; install the same version everywhere"
            )
        valid = [
            isinstance(self.run, str) and _RUN.fullmatch(self.run) is not None,
            isinstance(self.experiment, Mapping),
            all(isinstance(name, str) for name in self.sites),
            set(self.restarted) <= set(self.sites),
            0 < len(self.sites) == len(set(self.sites)),
            self.action in get_args(Action),
            self.from_round is None or (type(self.from_round) is int and self.from_round >= 0),
        ]
        if not all(valid):
            raise ConfigurationError(
                "expected an order with a run, an experiment and different sites; "
                "submit the run with `equipoise run --network`"
            )
