"""The registry of adaptors: installed ones by entry point, yours beside the pipeline file.

An installed adaptor has a short name in the entry point group
``transporter.readers`` or ``transporter.writers``. ``module:Class`` names a
class in a module of the pipeline file's folder, which is appended to
``sys.path``, so that nothing installed can be hidden by a file there.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
import traceback
from contextlib import contextmanager
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from transporter.adaptor import AdaptorConfig
from transporter.errors import ConfigError
from transporter.pipeline.problems import one_line, suggestion

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import EntryPoints
    from types import ModuleType

READER: Final = "reader"
WRITER: Final = "writer"
_METHODS: Final = {
    READER: ("open", "poll", "commit", "close"),
    WRITER: ("open", "write", "close"),
}
_FRAME_WRITER: Final = ("open", "save", "close")
_LOCAL: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
OUR_PACKAGES: Final = ("transporter", "transporter_adaptors")
"""Top-level packages of this project, whose names no module of the user may have."""

AdaptorClass = type[Any]


def find_reader(reference: str, folder: Path) -> AdaptorClass:
    """Return the reader class of *reference*. *folder* is the pipeline file's.

    Raise :class:`ConfigError`, without a place, if something is missing or the import fails.
    Importing the module runs the user's code.
    """
    return find_adaptor(READER, reference, folder)


def find_writer(reference: str, folder: Path) -> AdaptorClass:
    """Return the writer class of *reference*, as :func:`find_reader` does for readers."""
    return find_adaptor(WRITER, reference, folder)


def find_adaptor(kind: str, reference: str, folder: Path) -> AdaptorClass:
    """Return the class of *kind* (``reader`` or ``writer``) that *reference* names."""
    local = ":" in reference
    cls = _load_local(reference, folder, "Class") if local else _load_installed(kind, reference)
    return _check_class(kind, reference, cls)


def takes_frames(cls: type[Any]) -> bool:
    """Return whether a writer's class is a ``FrameWriter``, which takes Spark DataFrames."""
    return callable(getattr(cls, "save", None)) and not hasattr(cls, "write")


def find_function(reference: str, folder: Path) -> Callable[[Any], Any]:
    """Return the function ``module:name``, of one parameter. For errors see :func:`find_reader`."""
    function = _load_local(reference, folder, "function")
    if not callable(function):
        raise ConfigError(f"{reference!r} is not a function but {type(function).__name__}")
    if inspect.iscoroutinefunction(function):
        raise ConfigError(f"{reference!r} is async; steps call plain functions")
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise ConfigError(f"{reference!r} does not take one message: {error}") from error
    except ValueError:
        pass  # written in C, it has no signature
    return function


def forget_modules(folder: Path) -> None:
    """Import the modules beside the pipeline file in *folder* again at their next use.

    Adaptors that were installed meanwhile are found, too.
    """
    for name in _modules_beside(folder):
        del sys.modules[name]
    importlib.invalidate_caches()
    _entry_points.cache_clear()


@contextmanager
def fresh_modules(folder: Path) -> Iterator[None]:
    """Import the modules beside the pipeline file in *folder* again within the block only.

    Everything that runs keeps the modules that it has.
    """
    running = _modules_beside(folder)
    forget_modules(folder)
    try:
        yield
    finally:
        forget_modules(folder)
        sys.modules.update(running)


def _modules_beside(folder: Path) -> dict[str, ModuleType]:
    """Return the imported modules that lie in *folder*, by name."""
    beside = {path.stem for path in (*folder.glob("*.py"), *folder.glob("*/__init__.py"))}
    beside |= {path.parent.name for path in folder.glob("*/__init__.py")}
    found = {}
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        file = getattr(module, "__file__", None)
        if top in beside and top not in OUR_PACKAGES and file and is_under(Path(file), folder):
            found[name] = module
    return found


def adaptor_entry_points(kind: str) -> EntryPoints:
    """Return the installed adaptors of *kind* without importing them."""
    return _entry_points(f"transporter.{kind}s", tuple(sys.path))


@cache
def _entry_points(group: str, _path: tuple[str, ...]) -> EntryPoints:
    # Reads every installed distribution: 10 ms, at each name that a bad file has wrong.
    return entry_points(group=group)


def _load_installed(kind: str, name: str) -> object:
    found = {entry.value: entry for entry in adaptor_entry_points(kind).select(name=name)}
    if not found:
        raise ConfigError(f"there is no {kind} {name!r}{_suggest_instead(kind, name)}")
    if len(found) > 1:
        raise ConfigError(f"{name!r} names several {kind}s: {', '.join(sorted(found))}")
    entry = next(iter(found.values()))
    return _get_attribute(_import_module(entry.module, None), entry.attr, name)


def _suggest_instead(kind: str, name: str) -> str:
    other = WRITER if kind == READER else READER
    names = adaptor_entry_points(kind).names
    if name in adaptor_entry_points(other).names:
        return f"; {name!r} is a {other} ({kind}s: {', '.join(sorted(names)) or 'none'})"
    return suggestion(name, names, f"{kind}s")


def _load_local(reference: str, folder: Path, noun: str) -> object:
    if not _LOCAL.fullmatch(reference):
        raise ConfigError(f"{reference!r} does not name a {noun.lower()}; use module:{noun}")
    module_name, _, class_name = reference.partition(":")
    _refuse_our_names(folder)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
    module = _import_module(module_name, folder)
    _refuse_hidden(module, module_name, folder)
    return _get_attribute(module, class_name, reference)


def _refuse_our_names(folder: Path) -> None:
    home = Path(__file__).parents[2]
    for name in OUR_PACKAGES:
        for beside in (folder / name, folder / f"{name}.py"):
            if beside.exists() and beside.resolve() != (home / name).resolve():
                raise ConfigError(f"{beside} has the name of one of our own packages; rename it")


def _refuse_hidden(module: ModuleType, name: str, folder: Path) -> None:
    """Refuse a module of the folder in whose place Python has loaded another one."""
    top = name.partition(".")[0]
    loaded = Path(getattr(module, "__file__", None) or ".")
    if _is_beside(folder, top) and not is_under(loaded, folder):
        entries = (entry for kind in (READER, WRITER) for entry in adaptor_entry_points(kind))
        names = sorted({entry.name for entry in entries if entry.module == name})
        todo = "give the module another name"
        if names:
            todo = f"it is installed: write 'adaptor: {names[0]}', or uninstall it"
        raise ConfigError(f"{folder / top} is hidden by {loaded}; {todo}")


def _is_beside(folder: Path, top: str) -> bool:
    return (folder / f"{top}.py").exists() or (folder / top / "__init__.py").exists()


def is_under(path: Path, folder: Path) -> bool:
    """Return whether *path*, with symbolic links resolved, is in *folder*."""
    return path.resolve().is_relative_to(folder.resolve())


def _import_module(name: str, folder: Path | None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise _import_error(name, error, folder) from error
        beside = sorted(path.stem for path in folder.glob("*.py")) if folder else []
        where = f" in {folder}" if folder else ""
        hint = suggestion(name, beside, "modules") if folder else ""
        raise ConfigError(f"there is no module {error.name!r}{where}{hint}") from error
    except (Exception, SystemExit) as error:
        raise _import_error(name, error, folder) from error


def _import_error(name: str, error: BaseException, folder: Path | None) -> ConfigError:
    if isinstance(error, SyntaxError) and error.filename:
        place, reason = f"{error.filename}:{error.lineno}: ", f"{error.msg}"
    else:
        place, reason = _last_place(error, folder), str(error)
    kind = type(error).__name__
    return ConfigError(one_line(f"module {name!r} cannot be imported: {place}{kind}: {reason}"))


def _last_place(error: BaseException, folder: Path | None) -> str:
    """Return the deepest place in the user's own files, where there is one."""
    frames = traceback.extract_tb(error.__traceback__)
    files = [frame for frame in frames if not frame.filename.startswith("<")]
    own = [frame for frame in files if folder and is_under(Path(frame.filename), folder)]
    frame = (own or files)[-1]
    return f"{frame.filename}:{frame.lineno}: "


def _get_attribute(module: ModuleType, name: str, reference: str) -> object:
    try:
        return getattr(module, name)
    except AttributeError as error:
        own = ((key, getattr(value, "__module__", None)) for key, value in vars(module).items())
        own_names = [key for key, home in own if home == module.__name__]
        hint = suggestion(name, own_names, "names")
        where = f"{module.__name__} ({getattr(module, '__file__', None)})"
        raise ConfigError(f"{reference!r}: {where} has no {name!r}{hint}") from error


def _check_class(kind: str, reference: str, cls: object) -> AdaptorClass:
    """Return *cls*, or refuse it if it is not a class, or violates the contract of *kind*."""
    if not isinstance(cls, type):
        raise ConfigError(f"adaptor {reference!r} is not a class but {type(cls).__name__}")
    methods = _FRAME_WRITER if kind == WRITER and takes_frames(cls) else _METHODS[kind]
    missing = [f"{name}()" for name in methods if not callable(getattr(cls, name, None))]
    config = getattr(cls, "Config", None)
    if not (isinstance(config, type) and issubclass(config, AdaptorConfig)):
        missing.append("Config (a subclass of transporter.adaptor.AdaptorConfig)")
    if missing:
        raise ConfigError(f"adaptor {reference!r} is not a {kind}: it lacks {', '.join(missing)}")
    return cls
