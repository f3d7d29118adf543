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

CONTEXTS = [None, "tree", "chunks", "checkpoint", "table", "intent"]  # § 3, by kind of record
MAKE = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "dict": dict,
        "odict": collections.OrderedDict, "counter": collections.Counter, "int": int,
        "float": float, "str": str}  # § 5: containers, and a defaultdict's factories
SCALARS = {  # § 5: what the fields after a tag make; a content is given as its bytes
    "int": lambda raw: int.from_bytes(raw, "little", signed=True),
    "str": lambda raw: raw.decode("utf-8", "surrogatepass"), "bytes": bytes,
    "complex": lambda raw: complex(*struct.unpack("<2d", raw)),
    "npscalar": lambda dtype, raw: numpy.ndarray((), numpy_dtype(dtype), raw)[()],
    "datetime": lambda text, *zone: in_zone(datetime.datetime.fromisoformat(text), *zone),
    "time": lambda text, *zone: in_zone(datetime.time.fromisoformat(text), *zone),
    "date": datetime.date.fromisoformat, "timedelta": datetime.timedelta,
    "path": lambda name, raw: getattr(pathlib, name)(raw.decode()),
    "torch.Size": torch.Size, "torch.device": torch.device,
    **dict.fromkeys(("torch.dtype", "torch.layout", "torch.memory_format"), vars(torch).get),
    "torch.Generator": lambda device, raw: torch.Generator(device).set_state(torch_bytes(raw))}

def want(good, what):
    if not good:
        raise ValueError(what)

def blake(data, context=None):
    return blake3.blake3(data, derive_key_context=context and f"castore 1 {context}").digest()

def decode(data, what):
    value = msgpack.unpackb(data)
    want(msgpack.packb(value) == data, f"{what}: not in the canonical form")
    return value

def digests_in(column):
    return [column[at:at + 32] for at in range(0, len(column), 32)]

def in_zone(moment, fold, zone):
    if zone and zone[0] == "offset":
        delta = datetime.timedelta(microseconds=zone[1])
        zone = datetime.timezone(delta, *filter(None, zone[2:]))
    elif zone:
        zone = zoneinfo.ZoneInfo(zone[1])
    return moment.replace(fold=fold, tzinfo=zone)

def numpy_dtype(dtype):
    match dtype:
        case ["struct", itemsize, aligned, fields]:
            names, formats, offsets = zip(*fields)
            return numpy.dtype({"names": names, "formats": list(map(numpy_dtype, formats)),
                                "offsets": offsets, "itemsize": itemsize}, align=aligned)
        case ["sub", inner, shape]:
            return numpy.dtype((numpy_dtype(inner), tuple(shape)))
    return numpy.dtype(dtype)

def torch_bytes(raw):
    return torch.from_numpy(numpy.frombuffer(bytearray(raw), "u1"))

def read_config(store):  # § 2
    text = (store / "castore.json").read_text("utf-8")
    config = json.loads(text)
    bare = json.dumps({name: config[name] for name in config if name != "digest"}, indent=1)
    want(blake(bare.encode(), "config").hex() == config["digest"], "castore.json: wrong digest")
    return bytes.fromhex(config["store_id"]), config["chunk_size"]

def read_log(store, store_id):  # § 6: all changes, in order
    prev, lost, records = bytes(32), {}, []
    ...
