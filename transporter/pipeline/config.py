"""The pipeline file as frozen, validated values. Its reference is docs/configuration.md."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator

from transporter.errors import ConfigError, EnvironmentFault
from transporter.pipeline.adaptor_registry import READER, WRITER, find_adaptor, takes_frames
from transporter.pipeline.address import validate_address, validate_host
from transporter.pipeline.log_location import LogLocation, default_directory
from transporter.pipeline.namespace_filter import EVERYTHING, Pattern
from transporter.pipeline.observe_config import ObserveConfig, Token
from transporter.pipeline.problems import (
    MOST_PROBLEMS,
    InvalidPipeline,
    dotted_path,
    one_line,
    suggestion,
)
from transporter.pipeline.retention_config import (
    SHORTEST_ROLL,
    CompactionConfig,
    MaxBytes,
    OnFull,
    Retention,
    RetentionConfig,
)
from transporter.pipeline.route_options import (
    EARLIEST,
    Count,
    Model,
    NotEmpty,
    OneOrUnlimited,
    OnError,
    ParkLimit,
    ParkOrder,
    PositiveDuration,
    RetryConfig,
    StartOption,
    WorkerMemory,
    waiting_circles,
)
from transporter.pipeline.secret_files import SecretSettings, UnreadableSecret
from transporter.pipeline.secrets import Secrets, secrets_in, secrets_of
from transporter.pipeline.spark_protection import protection_problem
from transporter.pipeline.steps.registry import parse_step
from transporter.pipeline.steps.sql import SQL
from transporter.pipeline.steps.step import StepConfig  # noqa: TC001 - pydantic reads it
from transporter.pipeline.validation_errors import Section, validate
from transporter.pipeline.yaml_document import Document, KeyPath, from_values, read, read_with_gaps
from transporter.units import FOLDER, Duration, Rate, Size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
_SMALLEST_SEGMENT: Final = 64 * 1024
_MOST_ROWS: Final = 10_000_000
_MOST_SHARDS: Final = 64
"""Workers of one route: each is a process, and holds a slot of Spark's."""


def _check_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError(
            "must be 1 to 63 letters, digits, - or _, and begin with a letter or digit"
        )
    return text


def _spark_value_text(value: object) -> object:
    """Write a YAML boolean or number the way Spark reads it."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) if isinstance(value, int | float) else value


def is_local(master: str) -> bool:
    """Return whether Spark's *master* runs everything in one process of this host."""
    return master == "local" or master.startswith("local[")


def _require_cluster(value: object, info: ValidationInfo) -> object:
    if is_local(info.data.get("master", "")):
        raise ValueError("is for a cluster: with a local master everything runs on this host")
    return value


_OnACluster: Final = AfterValidator(_require_cluster)

READER_KEYS: Final = ("name", "adaptor", "release", "max_in_flight")
WRITER_KEYS: Final = ("adaptor",)
"""Keys of a reader's and a writer's section besides the settings of the adaptor."""

Release = Literal["logged", "delivered"]
"""The condition for an acknowledgement to the source: an entry is durable, or delivered by all."""


def _needs_dataframes(writer: WriterConfig | None, steps: Iterable[StepConfig]) -> bool:
    frames = writer is not None and takes_frames(writer.cls)
    return frames or any(step.name == SQL for step in steps)


def _refuse_with_dataframes(value: int | None, info: ValidationInfo) -> int | None:
    if value is not None and _needs_dataframes(info.data.get("writer"), info.data.get("steps", ())):
        raise ValueError(
            "is not for a route with a sql step or a Spark sink: its slices are DataFrames, "
            "which hold entries of a key in any order; leave it out"
        )
    return value


def _check_release(value: str | None, info: ValidationInfo) -> str | None:
    if value == "delivered" and not getattr(info.data.get("config"), "can_wait_for_delivery", True):
        raise ValueError("is not for a reader with these settings; see the adaptor's page")
    if value == "logged" and getattr(info.data.get("config"), "needs_delivery", False):
        raise ValueError(
            "is not enough for this source, which other engines share: they cannot see this "
            "engine's log; leave it out, or write delivered"
        )
    return value


def _check_spark_key(key: str) -> str:
    if not key.startswith("spark."):
        raise ValueError("does not begin with 'spark.'; Spark would ignore it")
    if key == "spark.master":
        raise ValueError("is not allowed here; set master beside config")
    return key


Name = Annotated[str, AfterValidator(_check_name)]


def _roll_interval(age: float) -> float:
    """Return the seconds until segments are sealed whose entries are kept for *age* only."""
    return max(SHORTEST_ROLL, age / 4)


class LogConfig(LogLocation):
    """The commit log: its place, the cutting and compression of segments, and their lifetime."""

    segment_bytes: Annotated[Size, Field(ge=_SMALLEST_SEGMENT)] = 1024**3
    segment_age: PositiveDuration = 86400.0
    compression: Literal["none", "lz4"] = "lz4"
    compaction: CompactionConfig = CompactionConfig()
    retention: Retention = RetentionConfig()
    max_bytes: MaxBytes = None
    on_full: OnFull = "wait"

    @property
    def roll_after(self) -> float:
        """Seconds from its first entry until a segment is sealed: ``segment_age`` or less.

        Only sealed segments are compacted and removed, so an entry may outlive its configured
        age by this much: at most a quarter of it.
        """
        asked = (self.retention.age, self.compaction.after)
        least = min((each for each in asked if each is not None), default=None)
        return self.segment_age if least is None else min(self.segment_age, _roll_interval(least))

    @property
    def codec(self) -> str | None:
        """The compression of frames, as the log takes it."""
        return None if self.compression == "none" else self.compression


class WriterConfig(Model):
    """A route's writer: its class, and ``config``, a valid instance of the class's ``Config``.

    ``secrets`` are redacted in all of its texts.
    """

    adaptor: str
    # Out of every repr, because settings hold secrets (Invariant 20).
    settings: dict[str, Any] = Field(repr=False)
    cls: type[Any]
    config: Any = Field(repr=False)
    secrets: Secrets = Field(default=Secrets(), repr=False, exclude=True)
    secret_settings: SecretSettings = Field(default=SecretSettings(), repr=False, exclude=True)
    folder: Path = Field(default=Path(), repr=False, exclude=True)

    @property
    def settings_as_written(self) -> dict[str, Any]:
        """The settings as the file has them: with the names of secret files, not their contents.

        A replaced secret is therefore not a change of the pipeline.
        """
        return self.secret_settings.restore_templates(self.settings)

    def renew_secrets(self) -> Self:
        """Return a copy with the current contents of its secret files, or itself if they are equal.

        Former secrets stay secrets. Thread-safe.

        Raises:
            EnvironmentFault: a file or its contents cannot be used.

        """
        if not self.secret_settings:
            return self
        try:
            settings, values = self.secret_settings.read(self.settings)
        except UnreadableSecret as error:
            raise EnvironmentFault(str(error)) from None
        if settings == self.settings:
            return self
        try:
            config = self.cls.Config.model_validate(settings, context={FOLDER: self.folder})
        except Exception:  # noqa: BLE001 - a validator is the adaptor's author's code
            files = (str(file) for _, each in self.secret_settings.templates for file in each.files)
            raise EnvironmentFault(
                f"{', '.join(files)}: "
                f"{self.adaptor} refuses the current contents of the secret file"
            ) from None
        secrets = self.secrets | secrets_in(values, config)
        return self.model_copy(update={"settings": settings, "config": config, "secrets": secrets})

    def is_outdated(self) -> bool:
        """Return whether a secret file has changed, or ``False`` for an unusable one."""
        try:
            return self.renew_secrets() is not self
        except EnvironmentFault:
            return False


class ReaderConfig(WriterConfig):
    """A reader with its name, its class, and a valid instance of the class's ``Config``.

    ``release`` is the condition for an acknowledgement to the source. ``None`` is the adaptor's
    default. ``max_in_flight`` is the maximum of undelivered entries with ``release: delivered``.
    """

    name: Name
    release: Annotated[Release | None, AfterValidator(_check_release)] = None
    max_in_flight: Count = 100_000

    @property
    def waits_for_delivery(self) -> bool:
        """True if its source waits for the delivery by every route."""
        return self.release == "delivered" or bool(self.config.needs_delivery)


class RouteConfig(Model):
    """One way through the log: which entries, how many at a time, into which writer."""

    name: Name
    namespace: Pattern = EVERYTHING
    steps: tuple[StepConfig, ...] = ()
    writer: WriterConfig
    start: StartOption = EARLIEST
    after: Name | None = None
    slice_rows: Annotated[Count, Field(le=_MOST_ROWS)] = 50_000
    slice_bytes: Annotated[Size, Field(ge=1)] = 16 * 1024**2
    linger: Duration = 0.0
    max_rate: Rate | None = None
    parallelism: Annotated[Count, Field(le=_MOST_SHARDS)] = 1
    max_in_flight_per_key: Annotated[OneOrUnlimited, AfterValidator(_refuse_with_dataframes)] = None
    retry: RetryConfig = RetryConfig()
    on_error: OnError = "stop"
    park_order: ParkOrder = "key"
    park_limit: ParkLimit = ParkLimit()
    slice_timeout: PositiveDuration = 60.0
    worker_memory: WorkerMemory = 1024**3

    @property
    def has_start(self) -> bool:
        """True if the file sets the start of the route."""
        return "start" in self.model_fields_set

    @property
    def on_frames(self) -> bool:
        """True if its slices are Spark DataFrames: it has a ``sql`` step, or a sink of Spark's."""
        return _needs_dataframes(self.writer, self.steps)


class SparkConfig(Model):
    """Settings of Spark: its master, its configuration, and its protection."""

    master: Annotated[str, Field(min_length=1)] = "local"
    config: dict[
        Annotated[str, AfterValidator(_check_spark_key)],
        Annotated[str, BeforeValidator(_spark_value_text)],
    ] = Field(default={}, repr=False)
    listen: Annotated[str, AfterValidator(validate_address), _OnACluster] | None = None
    advertise: Annotated[str, AfterValidator(validate_host), _OnACluster] | None = None
    insecure: Annotated[bool, _OnACluster] = False

    @model_validator(mode="after")
    def _check_protection(self) -> Self:
        if not (self.local or self.insecure) and (
            why := protection_problem(self.master, self.config)
        ):
            raise ValueError(why)
        return self

    @property
    def local(self) -> bool:
        """True if workers run on the engine's host, and nowhere else."""
        return is_local(self.master)


class Keys(Model):
    """The top-level keys of a pipeline file."""

    name: Name
    log: LogConfig
    readers: Annotated[tuple[ReaderConfig, ...], NotEmpty]
    routes: Annotated[tuple[RouteConfig, ...], NotEmpty]
    spark: SparkConfig = SparkConfig()
    observe: ObserveConfig = ObserveConfig()
    commit_interval: PositiveDuration = 1.0
    shutdown_timeout: PositiveDuration = 30.0


class Pipeline(Keys):
    """A whole pipeline. Durations are seconds, sizes are bytes, paths are absolute.

    ``file`` is the path from which it was read, or would have been. ``secrets`` are redacted.
    ``written`` has the file's contents, with names of secret files in place of secrets.
    """

    file: Path
    secrets: Secrets = Field(default=Secrets(), repr=False, exclude=True)
    written: dict[str, Any] = Field(default={}, repr=False, exclude=True)

    @property
    def turns(self) -> str:
        """The pipeline's name when engines take turns at one of its sources, else nothing."""
        return self.name if any(each.config.shared for each in self.readers) else ""

    @property
    def waits_for_delivery(self) -> bool:
        """True if a source is acknowledged only behind every route."""
        return any(reader.waits_for_delivery for reader in self.readers)


def load(path: Path, environ: Mapping[str, str]) -> Pipeline:
    """Read and validate the pipeline file at *path*, taking variables from *environ*.

    Adaptors are imported and their settings validated. Nothing is opened or connected. Raise
    :class:`ConfigError` if the file cannot be read as strict YAML, else
    :class:`InvalidPipeline` with all of its problems.
    """
    return load_with_lines(path, environ)[0]


def load_with_lines(path: Path, environ: Mapping[str, str]) -> tuple[Pipeline, Document]:
    """Load as :func:`load` does, and return the document with the lines of all keys."""
    document = read_with_gaps(path, environ)
    return _validate(document, _absolute_path(path)), document


def load_log(path: Path, environ: Mapping[str, str]) -> LogConfig:
    """Read and validate the section ``log`` of the pipeline file at *path*, and nothing else.

    Variables of readers, steps and writers need not be set. Raise as :func:`load` does.
    """
    document = read(path, environ, only=lambda key: key[0] in ("name", "log"))
    file = _absolute_path(path)
    root = document.root if isinstance(document.root, dict) else {}
    values = root.get("log", {})
    if isinstance(values, dict):
        values = {"dir": default_directory(root, file), **values}
    section = Section(document, ("log",))
    found, problems = validate(LogConfig, values, section, {FOLDER: file.parent})
    if found is None:
        raise _invalid_pipeline(problems)
    return found


class Unchecked(NamedTuple):
    """A setting that could not be checked: its line, its key, and the reason."""

    line: int
    key: str
    reason: str


def load_without_environment(
    path: Path, environ: Mapping[str, str]
) -> tuple[Pipeline | None, list[Unchecked]]:
    """Validate the file at *path* as far as its variables and secret files are here.

    A missing value fits any type. Raise as :func:`load` does for all other problems. Without
    missing values the pipeline is returned, otherwise the unchecked keys. Rules that depend on
    them, such as one about two settings, are unchecked as well.
    """
    document = read_with_gaps(path, environ)
    if not document.gaps:
        return _validate(document, _absolute_path(path)), []
    _, problems = _examine(document, _absolute_path(path))
    problems += [each for gap in document.gaps.values() if not gap.absent for each in gap.problems]
    if problems:
        raise _invalid_pipeline(problems)
    unchecked = [
        Unchecked(document.line(place), dotted_path(place), reason)
        for place, gap in document.gaps.items()
        for reason in gap.absent
    ]
    return None, unchecked


def _absolute_path(path: Path) -> Path:
    return Path(os.path.abspath(path))  # noqa: PTH100 - resolve() would follow symbolic links


def build(values: Mapping[str, Any], folder: Path) -> Pipeline:
    """Validate a pipeline that was made in Python, as if a file in *folder* held *values*.

    Variables are not replaced. Raise :class:`ConfigError` as :func:`load` does.
    """
    file = Path(os.path.abspath(folder / "pipeline"))  # noqa: PTH100 - as in load()
    return _validate(from_values(values), file)


def _examine(document: Document, file: Path) -> tuple[Keys | None, list[ConfigError]]:
    """Return the contents of *document*, and its problems besides its gaps."""
    draft = _Draft(document, file)
    keys, problems = validate(Keys, draft.values(), Section(document), draft.context)
    return keys, problems + draft.problems


def _invalid_pipeline(problems: list[ConfigError]) -> InvalidPipeline:
    return InvalidPipeline(*sorted(problems, key=lambda problem: problem.line))


def _validate(document: Document, file: Path) -> Pipeline:
    keys, problems = _examine(document, file)
    problems += document.problems()
    if keys is None or problems:
        raise _invalid_pipeline(problems)
    parts = [*keys.readers, *(each.writer for each in keys.routes)]
    secrets = Secrets.of(value for part in parts for value in part.secrets.values)
    secrets |= secrets_in((), keys.observe)
    return Pipeline(file=file, secrets=secrets, written=_written_values(document), **dict(keys))


def _written_values(document: Document) -> dict[str, Any]:
    return SecretSettings(tuple(document.templates.items())).restore_templates(document.root)


class _Draft:
    """One document on its way to a pipeline. Collects problems instead of stopping at the first."""

    def __init__(self, document: Document, file: Path) -> None:
        self.document, self.file = document, file
        self.context = {FOLDER: file.parent}
        self.problems: list[ConfigError] = []
        self._classes: dict[tuple[str, str], type[Any]] = {}

    def values(self) -> object:
        """Return the document with its defaults and adaptors filled in, ready to validate."""
        root = self.document.root
        if not isinstance(root, dict):
            return root
        values = {
            "name": self._default_name() if "name" not in root else root["name"],
            "log": {},
            **root,
        }
        if isinstance(values["log"], dict):
            values["log"] = {"dir": f"data/{values['name']}", **values["log"]}
        token = self.document.templates.get(("observe", "token"))
        if token is not None:
            observe = root["observe"]
            values["observe"] = observe | {"token": Token(token, observe["token"])}
        if "readers" in root:
            values["readers"] = self._fill_each(("readers",), self._fill_reader)
        if "routes" in root:
            values["routes"] = self._fill_each(("routes",), self._fill_route)
            if isinstance(root["routes"], list):
                self._refuse_endless_waits(root["routes"])
        return values

    def _default_name(self) -> str:
        if _NAME.fullmatch(self.file.stem):
            return self.file.stem
        text = "the file's name cannot name the pipeline; add name: with letters, digits, - and _"
        self.problems.append(self.document.problem((), text))
        return "unnamed"

    def _fill_each(
        self, path: KeyPath, fill: Callable[[dict[str, Any], KeyPath], object]
    ) -> object:
        items = self.document.root[path[0]]
        if not isinstance(items, list):
            return items
        self._refuse_same_names(items, path)
        return [
            # Of so many mistakes only the first ones are reported.
            fill(item, (*path, index))
            if isinstance(item, dict) and len(self.problems) <= MOST_PROBLEMS
            else item
            for index, item in enumerate(items)
        ]

    def _refuse_endless_waits(self, items: list[Any]) -> None:
        """Refuse to wait for a route that is not there or that itself, through others, waits."""
        places = {
            item["name"]: index
            for index, item in enumerate(items)
            if isinstance(item, dict) and isinstance(item.get("name"), str)
        }
        after = {name: items[index].get("after") for name, index in places.items()}
        waits = {name: other for name, other in after.items() if isinstance(other, str)}
        unknown = any(
            self.document.has_gap(("routes", index, "name")) for index in range(len(items))
        )
        for name, other in waits.items():
            if other not in places and not unknown:
                text = f"there is no route {other!r}{suggestion(other, places, 'routes')}"
                self._report_after(places[name], text)
        for circle in waiting_circles(waits):
            text = " waits for ".join([*circle, circle[0]])
            self._report_after(places[circle[0]], f"{text}; none of them could ever start")

    def _report_after(self, index: int, text: str) -> None:
        path = ("routes", index, "after")
        self.problems.append(
            self.document.problem(path, f"routes[{index}].after: {one_line(text)}")
        )

    def _refuse_same_names(self, items: list[Any], path: KeyPath) -> None:
        """Refuse names that are one folder to a file system, as ``a`` and ``A`` may be."""
        seen: dict[str, int] = {}
        for index, item in enumerate(items):
            name = item.get("name") if isinstance(item, dict) else None
            if isinstance(name, str) and seen.setdefault(name.lower(), index) != index:
                first = f"{path[0]}[{seen[name.lower()]}]"
                text = f"{path[0]}[{index}].name repeats that of {first} (case is ignored)"
                self.problems.append(self.document.problem((*path, index, "name"), text))

    def _fill_reader(self, item: dict[str, Any], path: KeyPath) -> object:
        return self._fill_adaptor(READER, item, path, READER_KEYS)

    def _fill_route(self, item: dict[str, Any], path: KeyPath) -> object:
        writer, steps = item.get("writer"), item.get("steps")
        if isinstance(writer, dict):
            made = self._fill_adaptor(WRITER, writer, (*path, "writer"), WRITER_KEYS)
            item = item | {"writer": made}
        if isinstance(steps, list):
            item = item | {"steps": self._parse_steps(steps, (*path, "steps"))}
        return item

    def _parse_steps(self, items: list[Any], path: KeyPath) -> list[StepConfig]:
        """Return the valid steps. Each invalid one becomes a problem."""
        found = []
        for index, item in enumerate(items):
            step, problems = parse_step(item, self.document, (*path, index), self.file.parent)
            self.problems += problems
            found += [step] if step else []
        return found

    def _fill_adaptor(
        self, kind: str, values: dict[str, Any], path: KeyPath, own: tuple[str, ...]
    ) -> dict[str, Any]:
        """Part the adaptor's *settings* from our *own* keys, find its class, validate them."""
        settings = {key: value for key, value in values.items() if key not in own}
        filled = {key: values[key] for key in own if key in values}
        filled |= {"settings": settings, "cls": object, "config": None}
        cls = self._find_class(kind, values.get("adaptor"), (*path, "adaptor"))
        if cls is not None:
            config = self._validate_config(cls, settings, path, own)
            filled |= {
                "cls": cls,
                "config": config,
                "secrets": secrets_of(self.document, config),
                "secret_settings": self._secret_settings(settings, path),
                "folder": self.file.parent,
            }
        return filled

    def _secret_settings(self, settings: dict[str, Any], path: KeyPath) -> SecretSettings:
        found = (
            (key[len(path) :], template)
            for key, template in self.document.templates.items()
            if key[: len(path)] == path
        )
        return SecretSettings(tuple((key, each) for key, each in found if key[0] in settings))

    def _find_class(self, kind: str, reference: object, path: KeyPath) -> type[Any] | None:
        if not isinstance(reference, str):
            return None  # missing or not a text: the model reports it
        known = self._classes.get((kind, reference))
        if known is not None:
            return known
        try:
            # Each search of the installed packages takes milliseconds.
            found = self._classes[kind, reference] = find_adaptor(kind, reference, self.file.parent)
        except ConfigError as error:
            hidden = path in self.document.substituted
            text = f"the {kind} that a variable names here cannot be used"
            self.problems.append(self.document.problem(path, text if hidden else error.problem))
            return None
        return found

    def _validate_config(
        self, cls: type[Any], settings: dict[str, Any], path: KeyPath, own: tuple[str, ...]
    ) -> object:
        try:
            section = Section(self.document, path, own)
            config, problems = validate(cls.Config, settings, section, self.context)
        except Exception as error:  # noqa: BLE001 - a validator is the adaptor's author's code
            reason = str(error) if isinstance(error, ConfigError) else type(error).__name__
            text = f"{cls.__name__} cannot validate its settings: {reason}"
            due_to_a_gap = self.document.has_gap(path)
            config, problems = None, [] if due_to_a_gap else [self.document.problem(path, text)]
        self.problems += problems
        return config
