"""The `data:` section of an experiment."""

from __future__ import annotations

import warnings
from typing import Any, Literal

from pydantic import (
    ConfigDict,
    Field,
    field_serializer,
    field_validator,
    model_validator,
)

from equipoise.data.agreement import check_complete, check_scaling
from equipoise.data.arrays.pixels import is_window
from equipoise.data.arrays.transforms import NORMALISATIONS, augmentation
from equipoise.data.group_columns import read_columns
from equipoise.data.schema import Schema, schema_from
from equipoise.data.sets.synthetic import NAME as SYNTHETIC
from equipoise.data.sets.synthetic import Synthetic
from equipoise.task import TaskKind
from equipoise.validation.imports import permission
from equipoise.validation.names import did_you_mean, is_unicode, quoted
from equipoise.validation.registry import plain_function
from equipoise.validation.settings import Settings

# Files name this key `schema`, which pydantic once used for something else.
warnings.filterwarnings(
    "ignore", 'Field name "schema" in "DataConfig" shadows an attribute', UserWarning
)


class DataConfig(Settings):
    """The data of an experiment: data set, partition, split and preparation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(
        default="digits",
        description="a registered set, several joined as domains (mnist+usps), "
        "or a path: per-site files or images",
    )
    partition: Any = Field(
        default="auto",
        description="iid, dirichlet:0.3, ics:5, ..., package.module:name, or a function "
        "(pool, clients, seed); auto is natural where the data have sites, else iid",
    )
    clients: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="number of clients; none: as the partition or the sites say, else 10",
    )
    split: tuple[float, float, float] = Field(
        default=(0.7, 0.1, 0.2),
        description="shares of training, validation and test inside a client",
    )
    server_validation: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="share of the samples that are the server's validation set and no client's, "
        "drawn before the partition; 0: the server uses the clients' validation parts",
    )
    test: Literal["local", "global", "site"] = Field(
        default="local",
        description="local: each client its own part; global: one for all; "
        "site: the official test part of the client's site",
    )
    pool: Literal["auto", "all", "train"] = Field(
        default="auto",
        description="official parts that are partitioned; "
        "auto is train if the official test part is kept",
    )
    samples: int | None = Field(
        default=None,
        ge=1,
        description="use only so many samples, drawn at random: for quick trials",
    )
    task: TaskKind | None = Field(
        default=None,
        description="override, for sets whose grades are classes or numbers; survival: the columns "
        "`time` and `event` of a table",
    )
    time: str | None = Field(
        default=None,
        description="of survival: the column of times to event or censoring; none: time",
    )
    event: str | None = Field(
        default=None,
        description="of survival: the column that is 1 for an event and 0 for censoring; "
        "none: event",
    )
    intervals: int | None = Field(
        default=None,
        ge=2,
        le=1000,
        description="of survival: intervals of a discrete-time model (logistic hazard); "
        "none: one log risk (Cox)",
    )
    schema: Schema | None = Field(  # type: ignore[assignment]
        default=None,
        description="columns, kinds, categories, classes, as `equipoise data check --save` "
        "writes them: a file or a mapping",
    )
    synthetic: Synthetic | None = Field(
        default=None,
        description="samples, features, classes and seed of a synthetic set, in place of a name",
    )
    label: str | None = Field(default=None, description="the label column of a table")
    site: str | None = Field(
        default=None, description="the column that names the site, when all sites share one file"
    )
    codes: str | None = Field(
        default=None,
        description="of patients' records: a file of the codes that make a label; "
        "none: pancreatic cancer",
    )
    events: int | None = Field(
        default=None,
        ge=1,
        le=10_000,
        description="of patients' records: how many events of each are kept, the latest",
    )
    categorical: tuple[str, ...] = Field(
        default=(), description="columns of a table whose numbers are categories"
    )
    groups: dict[str, tuple[float, ...]] = Field(
        default={},
        description="columns of a table by which results are reported, and the edges of bins for "
        "numbers: [sex, age: [0, 50, 65, 120]]; they need not be inputs",
    )
    without: tuple[str, ...] = Field(
        default=(),
        description="sites that are left out as if they had never joined: nothing is taken from "
        "their rows",
    )
    apart: bool = Field(
        default=False,
        description="every site prepares its rows alone, by a schema on which all agree: it draws "
        "its own split, and compares its rows with no other site's",
    )
    normalise: str = Field(
        default="auto",
        description="images: none, half, imagenet, ...; tables: client, pooled, agreed (centre "
        "and scale of the schema), none; auto: none for images, client for tables",
    )
    image_size: int | None = Field(
        default=None, ge=4, le=1024, description="resize images to this height and width"
    )
    window: tuple[float, float] | None = Field(
        default=None,
        description="image files with more than 8 bits per pixel: "
        "the values that become black and white",
    )
    augment: tuple[str, ...] = Field(
        default=(), description="for training batches: crop, crop_reflect, flip, rotate"
    )
    duplicates: Literal["together", "separate"] = Field(
        default="together",
        description="equal samples stay on one side of a split, or are treated as different",
    )

    @model_validator(mode="before")
    @classmethod
    def _named_synthetic(cls, values: Any) -> Any:
        """Set the name of synthetic data, and their options if only the name is set."""
        if not isinstance(values, dict):
            return values
        name = values.get("name")
        synthetic = values.get("synthetic")
        if synthetic is None and name != SYNTHETIC:
            return values
        if name not in (None, SYNTHETIC):
            raise ValueError(
                f"synthetic: expected no other data set, got name {quoted(name)}; "
                "leave one of the two out"
            )
        return {**values, "name": SYNTHETIC, "synthetic": {} if synthetic is None else synthetic}

    @field_validator("schema", mode="before")
    @classmethod
    def _schema(cls, value: Any) -> Schema | None:
        return schema_from(value)

    @field_validator("groups", mode="before")
    @classmethod
    def _group_columns(cls, value: Any) -> Any:
        return read_columns(value)

    @field_validator("name")
    @classmethod
    def _writable(cls, name: str) -> str:
        if not is_unicode(name) or "\0" in name or len(name) > 4096:
            raise ValueError(
                f"expected a name or a path in UTF-8, got {quoted(name)}; rename the file or folder"
            )
        return name

    @field_validator("split")
    @classmethod
    def _shares(cls, split: tuple[float, float, float]) -> tuple[float, float, float]:
        if split[0] <= 0 or min(split) < 0 or abs(sum(split) - 1) > 1e-6:
            raise ValueError(
                "expected three shares (train, validation, test) that add up to 1 "
                f"with a positive first, got {split}"
            )
        return split

    @field_validator("window")
    @classmethod
    def _window_has_a_width(cls, window: tuple[float, float] | None) -> tuple[float, float] | None:
        if window is not None and not is_window(*window):
            raise ValueError(
                f"expected a low and a higher value, both below 1e30, got {list(window)}"
            )
        return window

    @field_validator("normalise")
    @classmethod
    def _known_normalisation(cls, name: str) -> str:
        allowed = ("auto", "client", "pooled", "agreed", *NORMALISATIONS)
        if name not in allowed:
            raise ValueError(
                f"unknown normalisation {quoted(name)}{did_you_mean(name, allowed)}; "
                f"known: {', '.join(allowed)}"
            )
        return name

    @field_validator("augment")
    @classmethod
    def _known_augmentations(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            augmentation(name)
        return names

    @field_validator("partition")
    @classmethod
    def _known_partition(cls, partition: Any) -> Any:
        from equipoise.data.partitions import check_function, parse, portable

        if isinstance(partition, str):
            parse(partition, permission.get())
            return portable(partition)
        if not callable(partition):
            raise ValueError(
                "expected a partition such as dirichlet:0.3, or a function, "
                f"got {quoted(partition)}"
            )
        return check_function(getattr(partition, "__name__", "given in Python"), partition)

    @field_validator("name")
    @classmethod
    def _portable_name(cls, name: str) -> str:
        from equipoise.data.sets import REGISTRY

        return REGISTRY.portable(name)

    @model_validator(mode="after")
    def _of_survival(self) -> DataConfig:
        if self.survival_columns is not None and self.label not in (None, self.label_column):
            raise ValueError(
                f"label: expected none, since survival has `time` and `event`, got {self.label}; "
                "name the column of times as `time`"
            )
        if self.task in (None, "survival"):
            return self
        for key in ("time", "event", "intervals"):
            if getattr(self, key) is not None:
                raise ValueError(
                    f"{key}: expected task: survival, got {self.task}; leave {key} out, or change "
                    "the task"
                )
        return self

    @model_validator(mode="after")
    def _prepared_apart(self) -> DataConfig:
        if self.apart:
            _check_apart(self)
        return self

    @field_serializer("partition")
    def _plain_partition(self, partition: Any) -> str:
        return self.partition_name

    @property
    def survival_columns(self) -> tuple[str, str] | None:
        """The columns of times and events in a table; None if the task is not survival."""
        schema = self.schema or Schema()
        if (self.task or schema.predicts) != "survival":
            return None
        return self.time or schema.label or "time", self.event or schema.event or "event"

    @property
    def label_column(self) -> str | None:
        """The label column that the user chose; in survival analysis the column of times."""
        columns = self.survival_columns
        return self.label if columns is None else columns[0]

    @property
    def partition_name(self) -> str:
        """The partition as text; a function is shown by its import name, if it has one."""
        return plain_function(self.partition)

    @property
    def why_not_remote(self) -> str | None:
        """The reason why another process cannot make these data; None if it can."""
        from equipoise.data import partitions, sets

        if partitions.is_local(self.partition):
            return "its partition is defined in a notebook or script"
        if sets.REGISTRY.is_local(self.name):
            return f"its data set {self.name} is registered in this process only"
        return None


def _check_apart(config: DataConfig) -> None:
    """Refuse settings with which sites cannot prepare their data alone.

    Args:
        config: The data section, with `apart`.

    Raises:
        ValueError: If a setting needs the rows of all sites, or contradicts the schema.
    """
    for setting, is_wrong, remedy in (
        (
            f"partition: {config.partition_name}",
            config.partition not in ("auto", "natural"),
            "every site is one client: use natural, or leave it out",
        ),
        (
            f"samples: {config.samples}",
            config.samples is not None,
            "they are drawn from the rows of all sites; leave it out",
        ),
        (
            f"server_validation: {config.server_validation}",
            config.server_validation > 0,
            "it is drawn from the rows of all sites; leave it out",
        ),
        (
            "normalise: pooled",
            config.normalise == "pooled",
            "no site knows the means of the others; use agreed, with centre and scale in the "
            "schema, or client",
        ),
        (
            "test: global",
            config.test == "global",
            "no site has the test rows of the others; use local, or site for official test parts",
        ),
        (
            f"site: {config.site}",
            config.site is not None,
            "one file must hold the rows of one site; make one file of each site, and leave it out",
        ),
    ):
        if is_wrong:
            raise ValueError(
                "data.apart: expected settings that need no other site's rows, "
                f"got {setting}; {remedy}"
            )
    schema = check_complete(config.schema)
    _check_agrees(config, schema)
    if config.normalise == "agreed":
        check_scaling(schema)


def _check_agrees(config: DataConfig, schema: Schema) -> None:
    """Refuse settings that say something else than the schema."""
    size = config.image_size
    for key, value, agreed in (
        ("task", config.task, schema.predicts),
        ("label", config.label, schema.label),
        ("time", config.time, schema.label),
        ("event", config.event, schema.event),
        ("intervals", config.intervals, schema.intervals),
        ("events", config.events, schema.events),
        ("image_size", None if size is None else (size, size), (schema.shape or ())[1:]),
    ):
        if value is not None and value != agreed:
            raise ValueError(
                f"data.apart: expected the {key} on which the sites agreed in the schema, "
                f"{quoted(agreed)}, got {quoted(value)}; leave data.{key} out, or change the schema"
            )
    if config.categorical:
        raise ValueError(
            "data.apart: expected the kinds of columns in the schema, got categorical: "
            f"{', '.join(config.categorical)}; give these columns the kind category there"
        )
