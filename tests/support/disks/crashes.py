"""Possible states of a simulated disk after a power cut.

For each directory: an arbitrary part of the changes to its names that no sync covered, those to one
name in their order, each rename whole or not at all. For each file: every sector as it was at any
time since the last sync, or garbled where it was being written, and any length that the file has
had since.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from disks.simulated import Folder, Inode, SimulatedDisk, Tree, rename

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from disks.simulated import Naming

SECTOR: Final = 512
RECENT: Final = 3
"""Changes of one file that are lost, or survive, alone. Older ones had their turn before."""


@dataclass(frozen=True, slots=True, eq=False)
class Image:
    """The disk's content after one power cut, and the fate that led to it."""

    tree: Tree
    label: str
    fingerprint: int

    def disk(self) -> SimulatedDisk:
        """Return a disk with this content, sharing its bytes."""
        return SimulatedDisk(self.tree)


@dataclass(frozen=True, slots=True)
class Fate:
    """The fate of all changes that no sync has covered."""

    label: str
    keeps: Callable[[Naming], bool]
    content: Callable[[Inode], bytes]


def crash_states(disk: SimulatedDisk, rng: Random, count: int) -> Iterator[Image]:
    """Yield up to *count* different states that a power cut may leave *disk* in.

    First nothing and everything, data without names, names without data. Then each change alone
    lost or surviving and the latest write torn at each sector. Then, for two fifths of the count,
    states drawn from *rng*.
    """
    seen: set[int] = set()
    for fate in _fates(disk, rng, count):
        image = image_of(disk, fate)
        if image.fingerprint not in seen:
            seen.add(image.fingerprint)
            yield image


def _fates(disk: SimulatedDisk, rng: Random, count: int) -> Iterator[Fate]:
    folders, inodes = _pending(disk.root)
    yield from _CORNERS
    if not folders and not inodes:
        return
    chosen = [*_single_names(folders), *_single_changes(inodes), *_tears(disk, inodes)]
    rng.shuffle(chosen)
    chosen = chosen[: max(0, count * 3 // 5 - len(_CORNERS))]
    yield from chosen
    yield from islice(_random(rng), max(0, count - len(_CORNERS) - len(chosen)))


def image_of(disk: SimulatedDisk, fate: Fate) -> Image:
    """Return the content of *disk* after *fate*."""
    tree, fingerprint = _rendered(disk.root, fate)
    return Image(tree, fate.label, fingerprint)


def _rendered(folder: Folder, fate: Fate) -> tuple[Tree, int]:
    tree: dict[str, Any] = {}
    marks = []
    for name, node in _surviving(folder, fate).items():
        if isinstance(node, Folder):
            tree[name], mark = _rendered(node, fate)
        else:
            settled = not node.changes and fate is not PAGE_CACHE
            tree[name] = node.stages[0] if settled else fate.content(node)
            mark = hash(tree[name])
        marks.append((name, mark))
    return tree, hash(frozenset(marks))


def _surviving(folder: Folder, fate: Fate) -> dict[str, Inode | Folder]:
    if not folder.pending:
        return folder.durable
    if fate is PAGE_CACHE:
        return folder.entries
    entries = dict(folder.durable)
    stuck: set[str] = set()
    for naming in folder.pending:
        # Changes of one name happen in order: behind a lost change all are lost.
        if stuck.isdisjoint(naming.names) and fate.keeps(naming):
            rename(entries, naming)
        else:
            stuck.update(naming.names)
    return entries


def _pending(folder: Folder) -> tuple[list[Folder], list[Inode]]:
    """Return the directories and files below *folder* that have changes no sync covered."""
    folders, inodes = ([folder] if folder.pending else []), []
    for node in dict.fromkeys([*folder.durable.values(), *folder.entries.values()]):
        if isinstance(node, Folder):
            below = _pending(node)
            folders += below[0]
            inodes += below[1]
        elif node.changes:
            inodes.append(node)
    return folders, inodes


def _first(inode: Inode) -> bytes:
    return inode.stages[0]


def _last(inode: Inode) -> bytes:
    return inode.stages[-1]


def _all(_: Naming) -> bool:
    return True


def _none(_: Naming) -> bool:
    return False


_CORNERS: Final = (
    Fate("nothing survives", _none, _first),
    Fate("everything survives", _all, _last),
    Fate("data without names", _none, _last),
    Fate("names without data", _all, _first),
)


PAGE_CACHE: Final = Fate("what programs read", _all, lambda inode: inode.cached)
"""No crash of the machine: the content that is left when a process dies."""


def _single_names(folders: list[Folder]) -> Iterator[Fate]:
    for naming in (each for folder in folders for each in folder.pending):
        only, but = (lambda n, a=naming: n is a), (lambda n, a=naming: n is not a)
        for content, which in ((_last, "all"), (_first, "no")):
            yield Fate(f"only '{naming.what}', {which} data", only, content)
            yield Fate(f"all but '{naming.what}', {which} data", but, content)


def _single_changes(inodes: list[Inode]) -> Iterator[Fate]:
    for inode in inodes:
        for at in range(max(0, len(inode.changes) - RECENT), len(inode.changes)):
            change = inode.changes[at]
            what = f"change {at} ({change.start}..{change.end})"
            alone, lost = _alone(inode, at), _lost(inode, at)
            yield Fate(f"only {what}", _all, _only(inode, alone, _first))
            yield Fate(f"only {what}, no names", _none, _only(inode, alone, _first))
            yield Fate(f"all but {what}", _all, _only(inode, lost, _last))
            yield Fate(f"only {what} and all of the rest", _all, _only(inode, alone, _last))


def _only(
    this: Inode, content: bytes, others: Callable[[Inode], bytes]
) -> Callable[[Inode], bytes]:
    return lambda inode: content if inode is this else others(inode)


def _sectors(change: Any) -> range:
    return range(change.start // SECTOR, -(-change.end // SECTOR))


def _alone(inode: Inode, at: int) -> bytes:
    touched, after = _sectors(inode.changes[at]), inode.stages[at + 1]
    return _mixed(lambda sector: after if sector in touched else inode.stages[0], len(after))


def _lost(inode: Inode, at: int) -> bytes:
    later = {sector for change in inode.changes[at + 1 :] for sector in _sectors(change)}
    touched, last = set(_sectors(inode.changes[at])) - later, inode.stages[-1]
    return _mixed(lambda sector: inode.stages[at] if sector in touched else last, len(last))


def _tears(disk: SimulatedDisk, inodes: list[Inode]) -> Iterator[Fate]:
    """Yield the latest write torn at each sector, from both sides, and garbled in each."""
    inode = disk.latest
    if inode is None or inode not in inodes:
        return
    change, (before, after) = inode.changes[-1], inode.stages[-2:]
    size = max(len(before), len(after))
    for at in _sectors(change):
        halves = {
            "torn before": _mixed(lambda s, at=at: after if s < at else before, len(after)),
            "torn behind": _mixed(lambda s, at=at: after if s > at else before, len(after)),
            "short before": _mixed(lambda s, at=at: after if s < at else before, size)[
                : max(len(before), at * SECTOR) if len(after) > len(before) else None
            ],
        }
        if change.data:
            halves["inverted"] = _garbled(after, change, at, _inverted)
            halves["flipped"] = _garbled(after, change, at, _flipped(at))
        for what, content in halves.items():
            yield Fate(f"{what} sector {at}", _all, _only(inode, content, _last))


def _garbled(content: bytes, change: Any, sector: int, garble: Callable[[bytes], bytes]) -> bytes:
    start = max(change.start, sector * SECTOR)
    end = min(change.end, (sector + 1) * SECTOR)
    return content[:start] + garble(content[start:end]) + content[end:]


def _inverted(data: bytes) -> bytes:
    return bytes(byte ^ 0xFF for byte in data)


def _flipped(place: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        at = place * 37 % len(data) if data else 0
        return data[:at] + bytes([data[at] ^ (1 << place % 8)]) + data[at + 1 :] if data else data

    return flip


def _random(rng: Random) -> Iterator[Fate]:
    while True:
        share = rng.choice((0.0, 0.5, 0.5, 0.8, 1.0))
        seed = rng.getrandbits(48)
        yield _drawn(f"drawn {seed:x} ({share})", type(rng)(seed), share)


def _drawn(label: str, rng: Random, share: float) -> Fate:
    def content(inode: Inode) -> bytes:
        draw = rng.random()
        if draw < 0.25:
            return inode.stages[-1]
        if draw < 0.4:
            return rng.choice(inode.stages)
        return _shuffled(inode, rng)

    return Fate(label, lambda _: rng.random() < share, content)


def _shuffled(inode: Inode, rng: Random) -> bytes:
    length = len(rng.choice(inode.stages))
    low = rng.choice((0, 0, len(inode.stages) - 2))
    content = _mixed(lambda _: inode.stages[rng.randrange(low, len(inode.stages))], length)
    written = [change for change in inode.changes if change.data and change.start < length]
    if written and rng.random() < 0.4:
        change = rng.choice(written[-2:])
        sector = rng.choice(_sectors(change))
        garble = rng.choice((_inverted, _flipped(rng.randrange(4096)), _zeros))
        content = _garbled(content, change, sector, garble)[:length]
    return content


def _zeros(data: bytes) -> bytes:
    return bytes(len(data))


def _mixed(stage: Callable[[int], bytes], length: int) -> bytes:
    """Put a file of *length* bytes together from the stage of each sector."""
    parts = []
    for sector in range(-(-length // SECTOR)):
        part = stage(sector)[sector * SECTOR : (sector + 1) * SECTOR]
        parts.append(part if len(part) == SECTOR else part.ljust(SECTOR, b"\0"))
    return b"".join(parts)[:length]
