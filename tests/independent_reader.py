"""An independent reader of castore's bytes, written from docs/format.md alone (§: its sections).

What no digest vouches for raises ValueError. From the shell: STORE [BRANCH [BACK]].
"""
import collections
import datetime
import json
import pathlib
import struct
import sys
import zoneinfo

import blake3
import msgpack
import numpy
import torch
import zstandard

KINDS = ["chunk", "tree", "chunks", "checkpoint", "table", "intent"]  # § 3: records
MAKE = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict, "int": int,
        "odict": collections.OrderedDict, "counter": collections.Counter, "float": float,
        "str": str, None: None}  # § 5: containers, and what a defaultdict makes
SCALARS = {  # § 5: what becomes of the fields after a tag; a content is given as its bytes
    "int": lambda raw: int.from_bytes(raw, "little", signed=True),
    "str": lambda raw: raw.decode("utf-8", "surrogatepass"), "bytes": bytes,
    "complex": lambda raw: complex(*struct.unpack("<2d", raw)),
    "npscalar": lambda dtype, raw: numpy.ndarray((), dtype_of(dtype), raw)[()],
    "datetime": lambda text, *zone: in_zone(datetime.datetime.fromisoformat(text), *zone),
    "time": lambda text, *zone: in_zone(datetime.time.fromisoformat(text), *zone),
    "date": datetime.date.fromisoformat, "timedelta": datetime.timedelta,
    "path": lambda name, raw: getattr(pathlib, name)(raw.decode()),
    "torch.Size": torch.Size, "torch.device": torch.device,
    **dict.fromkeys(["torch.dtype", "torch.layout", "torch.memory_format"], vars(torch).get),
    "torch.Generator": lambda device, raw: torch.Generator(device).set_state(flat(raw))}

def want(good, what):
    if not good:
        raise ValueError(what)

def blake(data, context=None):
    return blake3.blake3(data, derive_key_context=context and f"castore 1 {context}").digest()

def decode(data, what):
    want(msgpack.packb(value := msgpack.unpackb(data)) == data, f"{what}: not in canonical form")
    return value

def digests_in(column):
    return [column[at:at + 32] for at in range(0, len(column), 32)]

def in_zone(moment, fold, zone):
    if zone and zone[0] == "offset":
        delta = datetime.timedelta(microseconds=zone[1])
        zone = datetime.timezone(delta, *filter(None, zone[2:]))
    return moment.replace(fold=fold, tzinfo=zoneinfo.ZoneInfo(zone[1]) if zone else None)

def flat(raw):
    return torch.from_numpy(numpy.frombuffer(bytearray(raw), "u1"))

def dtype_of(dtype):
    match dtype:
        case ["struct", itemsize, aligned, fields]:
            fields = {name: (dtype_of(inner), at) for name, inner, at in fields}
            ...

def read_config(store):  # § 2
    text = (store / "castore.json").read_text("utf-8")
    config = json.loads(text)
    bare = json.dumps({name: config[name] for name in config if name != "digest"}, indent=1)
    want(blake(bare.encode(), "config").hex() == config["digest"], "castore.json: wrong digest")
    return bytes.fromhex(config["store_id"]), config["chunk_size"]

def read_log(store, store_id):  # § 6: every change, in order
    prev = bytes(32)
    for n, path in enumerate(sorted(p for p in store.glob("log/*") if p.name.isdigit()), 1):
        data = path.read_bytes()
        for copy in (data[:len(data) // 2], data[len(data) // 2:]):
            magic, length, digest = struct.unpack_from("<8sQ32s", copy.ljust(48))
            raw = copy[48:48 + length]
            if magic == b"castlog\1" and blake(raw, "log entry") == digest:
                break
        else:
            raise ValueError(f"log entry {n}: neither copy is sound")
        record = decode(raw, path)
        links = [record["seq"], record["store"], record["prev"]]
        want(links == [n, store_id, prev], f"log entry {n}: wrong seq, store or prev")
        yield from record["changes"]
        prev = digest

def fold(changes):  # § 6: the checkpoints of each branch; the adds of the live ones; further packs
    branches, live, extra = collections.defaultdict(list), {}, []
    for change in changes:
        match change:
            case ["add", branch, checkpoint, *_]:
                branches[branch].append(checkpoint)
                live[checkpoint] = change
            case ["branch", name, to]:
                past = branches[name]
                branches[name] = past[:past.index(to) + 1] if to in past else [to] if to else []
            case ["unlist", name, gone]:
                branches[name] = [c for c in branches[name] if c not in gone]
            case ["letgo", gone]:
                live = {c: live[c] for c in live if c not in gone}
            case ["replace" | "heal", _, packs]:  # records are named by digest: more packs do no harm
                extra += packs
            case ["features", required, _]:
                want(not required, f"the store requires the features {required}")
            case [kind, *_]:  # the others change neither what is live nor where branches stand
                known = "tag condemn pin unpin quarantine verify damage lean window".split()
                want(kind in known, f"the log has a change of the kind {kind}")
    return {name: [c for c in past if c in live] for name, past in branches.items()}, live, extra

class Packs:  # § 3
    def __init__(self, store, identity, packs):
        self.root, self.identity, self.faults = store / "packs", identity, []
        self.places = collections.defaultdict(list)  # (kind, digest): wherever it is
        paths = {f"{save}/{name}": named for save, files in packs for name, *named in files}
        for path in sorted(paths, key=lambda path: ".data." in path):  # tables' copies come first
            try:
                self.index(path, self.table(path, *paths[path]))
            except (OSError, ValueError) as fault:
                self.faults.append(f"{path}: {fault}")

    def read(self, path, at, length):
        return numpy.fromfile(self.root / path, "u1", length, offset=at).tobytes()

    def table(self, path, pack_id, size):  # the pack's own, or else the copy in a meta pack
        try:
            at, length, named, check, magic = struct.unpack("<QQ32s8s8s", self.read(path, size - 64, 64))
            ...
