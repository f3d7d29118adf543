"""fsck: read everything, believe nothing but digests, and say what each damage means.

Reads ``castore.json``, every log entry (both copies), every pack that a live checkpoint needs,
then walks every live checkpoint from its root to its chunks.  Never writes; never trusts index or
fold files.  What no live checkpoint needs is debris, which is information and not damage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from castore.errors import CastoreError, StoreUnreadable, UnsupportedFeature
from castore.log.entry import EntryError, entry_name
from castore.log.fold import Fold, Live, parse_fold, render_fold
from castore.log.log import KNOWN_FEATURES, Log, fold_name
from castore.model.config import CONFIG_NAME, StoreConfig
from castore.model.digest import Digest, Kind
from castore.model.encoding import EncodingError, decode
from castore.model.objects import CONTENT_AT, CheckpointObject, content_grid, read_content, walk
from castore.model.packinfo import PackInfo
from castore.packs.findings import Subject, pack_finding, record_finding
from castore.packs.format import (
    FOOTER_SIZE,
    HEADER_SIZE,
    PackError,
    PackHeader,
    Table,
    parse_footer,
)
from castore.packs.reader import Damage, Location, PackSet, RecordDamaged, read_record
from castore.packs.scrub import PackState, scrub_pack
from castore.reports import Finding, FsckReport
from castore.storage.protocol import Storage
from castore.system import worker_threads
from castore.upkeep.config import read_config
from castore.upkeep.survey import Found, list_packs, survey

__all__ = ["fsck"]

_ORDER = {"damage": 0, "warning": 1, "info": 2}

Progress = Callable[[int], None]


def fsck(storage: Storage, *, quick: bool = False, progress: Progress | None = None) -> FsckReport:
    """Check a whole store.

    Args:
        storage: the store.
        quick: structure, sizes and metadata only: no chunk is read.
        progress: told of bytes read.

    Returns:
        Every finding; ``ok`` where nothing is damaged.

    Raises:
        StoreUnreadable: it cannot even be made out which store this is, or the medium failed.
        UnsupportedFeature: a newer castore wrote it.
    """
    try:
        return _Fsck(storage, quick, progress).run()
    except OSError as e:
        raise StoreUnreadable.of(e, "the check could not be finished", storage.where) from e


@dataclass(slots=True)
class _Fsck:
    storage: Storage
    quick: bool
    progress: Progress | None
    findings: list[Finding] = field(default_factory=list)
    bytes_read: int = 0
    chunk_size: int = 0
    #: Whether the log was followed to its end: else nobody can say what is not needed.
    followed: bool = False
    #: (pack path, digest) of records that are bad, with the damage.
    bad: dict[tuple[str, bytes], Damage] = field(default_factory=dict)
    #: lengths of pack files, where no chunk is read
    sizes: dict[str, int] = field(default_factory=dict)
    #: tables read once for the whole check
    tables: dict[str, Table | Damage] = field(default_factory=dict)

    def run(self) -> FsckReport:
        config = self._config()
        self.chunk_size = config.chunk_size
        listed = list_packs(self.storage)
        log = Log(self.storage, config.store_id, readonly=True)
        fold = self._log(log)
        self._packs(fold)
        whole = [live.digest for live in fold.live.values() if self._checkpoint(fold, live)]
        # Something may have been let go while we read: what is not live now was no damage.
        now = self._later(log, fold)
        self._forget_gone(fold, now)
        if self.followed:
            self._litter(now, listed)
        self.findings.sort(key=lambda f: _ORDER[f.severity])
        sound = set(whole)
        newest = {
            name: next(
                (d.hex() for d in reversed(fold.branches[name].checkpoints) if d in sound), None
            )
            for name in fold.heads()
        }
        return FsckReport(
            tuple(self.findings),
            checkpoints=len(fold.live),
            packs=len(fold.packs),
            bytes_read=self.bytes_read,
            newest_whole=newest,
            whole=tuple(d.hex() for d in whole),
            level="quick" if self.quick else "full",
        )

    def _note(self, code: str, severity: str, detail: str, file: str | None = None) -> None:
        self.findings.append(Finding(code, severity, detail, file=file))

    # -- castore.json -----------------------------------------------------------------------------

    def _config(self) -> StoreConfig:
        where = self.storage.where
        try:
            return read_config(self.storage)
        except FileNotFoundError:
            self._note("missing-config", "damage", f"{CONFIG_NAME} is missing", CONFIG_NAME)
        except (StoreUnreadable, OSError) as e:
            self._note("damaged-config", "damage", str(e), CONFIG_NAME)
        for header in self._headers():
            return StoreConfig(header.store_id, header.chunk_size)
        raise StoreUnreadable(
            f"{where}: {CONFIG_NAME} cannot be read and no pack says which store this is",
            path=CONFIG_NAME,
        )

    def _headers(self) -> Iterator[PackHeader]:
        for folder, names in list_packs(self.storage).items():
            for name in names:
                with contextlib.suppress(OSError, PackError):
                    yield PackHeader.parse(
                        self.storage.read(f"packs/{folder}/{name}", 0, HEADER_SIZE)
                    )

    # -- the log ----------------------------------------------------------------------------------

    def _log(self, log: Log) -> Fold:
        """Fold every entry from the first; stop at the first that is lost."""
        fold = Fold()
        # Listed before the entries are read: a writer may go on.
        fold_files = set(log.fold_files())
        last = max(log.listed(), default=0)
        seq = 0
        while True:
            seq += 1
            if seq > last and self.storage.size(entry_name(seq)) is None:
                break
            try:
                entry, problems = log.examine(seq)
            except StoreUnreadable as e:
                self._broken_log(log, seq, last, e)
                return fold
            for problem in problems:
                self._note(
                    "damaged-log-entry",
                    "damage",
                    f"log entry {seq}: {problem}; its other copy is sound",
                    entry_name(seq),
                )
            try:
                fold.advance([entry])
                if odd := fold.dangling():
                    raise EntryError(f"after entry {seq}, {odd}")
            except EntryError as e:
                self._broken_log(log, seq, last, StoreUnreadable(str(e)))
                return fold
            if seq in fold_files:
                self._fold_file(fold, entry.store)
        if not fold.seq:
            self._note(
                "missing-log-entry", "damage", "the log is empty: entry 1 is missing", entry_name(1)
            )
        for seq in sorted(n for n in fold_files if n > fold.seq):
            self._note(
                "missing-log-entry",
                "damage",
                f"{fold_name(seq)} is there, the log ends at {fold.seq}: newer entries are gone",
                entry_name(fold.seq + 1),
            )
        unknown = sorted(set(fold.required) - KNOWN_FEATURES)
        if unknown:
            raise UnsupportedFeature(
                f"the store {self.storage.where} uses {', '.join(unknown)}, which this castore "
                "does not know; use a newer castore"
            )
        self.followed = bool(fold.seq)
        return fold

    def _later(self, log: Log, fold: Fold) -> Fold:
        """The fold, gone on by what was appended meanwhile; by the entries, and no fold file."""
        now = fold.snapshot()
        with contextlib.suppress(StoreUnreadable, EntryError):
            while self.followed and self.storage.size(entry_name(now.seq + 1)) is not None:
                now.advance([log.entry(now.seq + 1)])
        return now

    def _broken_log(self, log: Log, seq: int, last: int, e: CastoreError) -> None:
        missing = self.storage.size(entry_name(seq)) is None
        self._note(
            "missing-log-entry" if missing else "damaged-log-entry",
            "damage",
            f"{str(e).removesuffix('; run `castore fsck`')}. What entries {seq} to "
            f"{max(last, seq)} say could not be followed, and is not checked here",
            entry_name(seq),
        )

    def _fold_file(self, fold: Fold, store: bytes) -> None:
        """Compare the fold file at this entry with the fold of the entries themselves.

        One that is damaged is passed over by every reader; one that is sound and says something
        else is believed, and so is damage.
        """
        name = fold_name(fold.seq)
        try:
            data = self.storage.read(name)
            parse_fold(data, store)
        except FileNotFoundError:
            return  # a newer one took its place meanwhile
        except (EntryError, OSError) as e:
            self._note("bad-fold-file", "info", f"{name}: {e}; it is derived", name)
            return
        if render_fold(fold, store) != data:
            self._note(
                "false-fold-file",
                "damage",
                f"{name} is not the fold of the log's entries; it is derived: delete it",
                name,
            )

    # -- packs ------------------------------------------------------------------------------------

    def _packs(self, fold: Fold) -> None:
        # Meta packs first: they hold the tables that serve where a data pack's own is damaged.
        order = sorted(fold.packs.values(), key=lambda p: (p.is_data, p.path))
        with ThreadPoolExecutor(worker_threads(), thread_name_prefix="castore-fsck") as pool:
            for info in order:
                copy = None
                if info.is_data:
                    table = PackSet(self.storage, [info, *_metas(fold, info)], self.tables).table(
                        info
                    )
                    copy = None if isinstance(table, Damage) else table
                state = scrub_pack(
                    self.storage,
                    info,
                    pool,
                    payloads=not (self.quick and info.is_data),
                    table=copy,
                    progress=self._count,
                )
                self._note_pack(state)

    def _count(self, n: int) -> None:
        self.bytes_read += n
        if self.progress is not None:
            self.progress(n)

    def _note_pack(self, state: PackState) -> None:
        for digest, damage in state.damages:
            if digest is not None:
                self.bad[(state.info.path, digest)] = damage
            self.findings.append(pack_finding(damage, digest))

    # -- checkpoints ------------------------------------------------------------------------------

    def _checkpoint(self, fold: Fold, live: Live) -> bool:
        """Walk one checkpoint from the log entry to its chunks; True where it is whole."""
        before = len(self.findings)
        subject = Subject(live.digest.hex(), live.add.branch, live.add.step)
        shelf = PackSet(self.storage, fold.packs_of(live.digest), self.tables)
        fetch = shelf.fetch
        try:
            checkpoint = CheckpointObject.parse(fetch(Kind.CHECKPOINT, live.digest))
            if checkpoint.root != live.add.root or checkpoint.parent != live.add.parent:
                raise EncodingError("it is not the checkpoint that its log entry describes")
            if checkpoint.chunk_size != self.chunk_size:
                raise EncodingError(f"its chunk size {checkpoint.chunk_size} is not the store's")
            locate = shelf.chunk_map().places
            for path, value in walk(checkpoint.root, fetch):
                if isinstance(value, list) and not (value and isinstance(value[0], str)):
                    raise EncodingError(f"{path} is no value")
                if isinstance(value, list) and value[0] in CONTENT_AT:
                    self._content(subject, shelf, fetch, locate, path, value, checkpoint)
        except RecordDamaged as e:
            self.findings.append(
                record_finding(subject, e.damages[0], e.digest, what=e.kind.name.lower())
            )
        except (EncodingError, IndexError, TypeError) as e:
            self.findings.append(
                Finding(
                    "malformed-object",
                    "damage",
                    f"{subject}: {e}",
                    checkpoint=subject.checkpoint,
                    branch=subject.branch,
                    step=subject.step,
                )
            )
        return not any(f.severity == "damage" for f in self.findings[before:])

    def _content(
        self,
        subject: Subject,
        shelf: PackSet,
        fetch: Callable[[Kind, Digest], bytes],
        locate: Callable[[Digest], list[Location]],
        path: str,
        value: list[object],
        checkpoint: CheckpointObject,
    ) -> None:
        grid = content_grid(value, checkpoint.chunk_size)
        known = value[0] in ("tensor", "ndarray")
        # What it may come to is bounded before it is spelled out: the metadata may be hostile.
        most = grid.chunks if known else checkpoint.logical_bytes
        content = read_content(value[CONTENT_AT[str(value[0])]], fetch, most)
        if content.inline is not None:
            return
        if known and len(content.digests) != grid.chunks:
            raise EncodingError(f"{path}: {len(content.digests)} chunks where {most} belong")
        spans = grid.spans() if known else [None] * len(content.digests)
        for digest, span in zip(content.digests, spans, strict=True):
            places = locate(digest)
            damage: Damage | None = None
            for place in places:
                damage = self.bad.get((place.pack.path, digest)) or self._beyond(place)
                if span is not None and place.record.raw_len != span[1] - span[0]:
                    damage = Damage(
                        "damaged-record", place.pack.path, place.record.offset,
                        f"{span[1] - span[0]} bytes", f"{place.record.raw_len} bytes",
                        "a chunk of another length than the grid gives it",
                    )  # fmt: skip
                if damage is None:
                    break
            else:
                damage = damage or shelf.missing(digest, Kind.CHUNK, data=True)[0]
            if damage is not None:
                rows = grid.rows_of(*span) if span is not None else None
                self.findings.append(record_finding(subject, damage, digest, path=path, rows=rows))

    def _beyond(self, place: Location) -> Damage | None:
        """Where no chunk is read: whether a record lies beyond the end of its file."""
        if not self.quick:
            return None
        info, end = place.pack, place.record.offset + place.record.stored_len
        if info.path not in self.sizes:
            self.sizes[info.path] = self.storage.size(info.file) or 0
        size = self.sizes[info.path]
        if end <= size:
            return None
        detail = f"{info.file} ends at {size}, before the end of the record"
        at = place.record.offset
        return Damage("damaged-record", info.path, at, f"{end} bytes", f"{size} bytes", detail)

    def _forget_gone(self, then: Fold, now: Fold) -> None:
        """Take back what was said of checkpoints and packs that are needed no more."""
        gone = {d.hex() for d in then.live if d not in now.live}
        paths = {f"packs/{p}" for p in then.packs if p not in now.packs}
        if gone or paths:
            self.findings = [
                f for f in self.findings if f.checkpoint not in gone and f.file not in paths
            ]

    # -- what is not needed -----------------------------------------------------------------------

    def _litter(self, fold: Fold, listed: dict[str, list[str]]) -> None:
        found = survey(self.storage, fold, listed)
        debris = [f for f in found if f.what in ("debris", "temporary", "folder", "session")]
        for save in sorted({f.save for f in debris if f.save}):
            mine = [f for f in debris if f.save == save]
            size = sum(f.size for f in mine)
            files = "1 file" if len(mine) == 1 else f"{len(mine)} files"
            text = f"packs/{save}: {files}, {size:,} bytes that no log entry needs"
            if (branch := self._uncommitted(fold, mine)) is not None:
                self._note(
                    "uncommitted-save",
                    "info",
                    f"{text}; a complete save on {branch} that has no entry",
                    f"packs/{save}",
                )
            else:
                self._note("debris", "info", f"{text}; `castore gc` removes it", f"packs/{save}")
        for item in found:
            if item.what == "temporary":
                self._note("debris", "info", f"{item.name}: left by a dead process", item.name)
            elif item.what == "stranger":
                self._note("stranger", "info", f"{item.name} is not castore's", item.name)

    def _uncommitted(self, fold: Fold, found: list[Found]) -> str | None:
        """The branch a complete save without an entry was meant for, or None.

        One that had its entry, and was let go since, is none.
        """
        for item in found:
            if not item.name.endswith(".meta.pack"):
                continue
            with contextlib.suppress(
                OSError, PackError, EncodingError, RecordDamaged, ValueError, TypeError
            ):
                info = _unlogged(self.storage, item)
                table = PackSet(self.storage, [info]).table(info)
                if isinstance(table, Damage):
                    continue
                for record in table:
                    if record.kind is Kind.INTENT:
                        intent = decode(read_record(self.storage, Location(info, record)))
                        return None if Digest(intent[2]) in fold.gone else str(intent[1])
        return None


def _unlogged(storage: Storage, item: Found) -> PackInfo:
    """What the log would say of a pack it does not name."""
    footer = storage.read(item.name, item.size - FOOTER_SIZE, FOOTER_SIZE)
    return PackInfo(item.name.removeprefix("packs/"), parse_footer(footer, item.size)[2], item.size)


def _metas(fold: Fold, info: PackInfo) -> list[PackInfo]:
    return [fold.packs[path] for path in fold.metas.get(info.save, ())]
