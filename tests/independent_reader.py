"""An independent reader of castore stores, written from docs/format.md alone (§: its sections).
What no digest vouches for raises ValueError. From a shell: independent_reader.py STORE [BRANCH]"""
import collections, datetime, json, pathlib, struct, sys  # noqa: E401, I001
import blake3, msgpack, numpy, torch, zstandard  # noqa: E401

KINDS = "chunk", "tree", "chunks", "checkpoint", "table", "intent"  # § 3, of records
MAKERS = {make.__name__: make for make in (list, tuple, set, frozenset, dict, int, float, str)}
MAKERS |= {"value": next, "odict": collections.OrderedDict, "counter": collections.Counter}
VALUES = {  # § 5: what the fields after a tag stand for; bytes have taken the place of a content
    "tensor": lambda flags, dtype, _, shape, raw: as_tensor(flags, dtype, shape, raw),
    "ndarray": lambda dtype, _, shape, raw: as_array(dtype, shape, raw),
    "npscalar": lambda dtype, raw: as_array(dtype, (), raw)[()],
    "int": lambda raw: int.from_bytes(raw, "little", signed=True), "bytes": bytes,
    "str": lambda raw: raw.decode("utf-8", "surrogatepass"),
    "complex": lambda raw: complex(*struct.unpack("<2d", raw)),
    "datetime": lambda *fields: as_time(datetime.datetime, *fields),
    "time": lambda *fields: as_time(datetime.time, *fields),
    "date": datetime.date.fromisoformat, "timedelta": datetime.timedelta,
    "path": lambda kind, raw: getattr(pathlib, kind)(raw.decode()),
    "torch.Size": torch.Size, "torch.device": torch.device, "torch.dtype": vars(torch).get}

def want(good, what):
    if not good:
        raise ValueError(what)

def blake(data, context=None):
    return blake3.blake3(data, derive_key_context=context and f"castore 1 {context}").digest()

def decode(data):
    want(msgpack.packb(value := msgpack.unpackb(data)) == data, f"not canonical: {data[:32]}")
    return value

def split(column):
    return [column[at:at + 32] for at in range(0, len(column), 32)]

def as_time(kind, text, fold, zone):
    want(zone is None, "this reader knows no time zones")
    return kind.fromisoformat(text).replace(fold=fold)

def as_array(dtype, shape, raw):
    want(isinstance(dtype, str), "this reader knows no structured arrays")
    little = numpy.dtype(dtype).newbyteorder("<")
    return numpy.ndarray(shape, little, raw).astype(dtype, copy=False)

def as_tensor(flags, dtype, shape, raw):
    flat = torch.from_numpy(numpy.frombuffer(raw, "u1")).view(getattr(torch, dtype))
    made = flat.reshape(shape)
    return torch.nn.Parameter(made, flags > 1) if flags & 1 else made.requires_grad_(flags > 1)

def read_log(store, store_id):  # § 6: the branches' lists, and every checkpoint's add
    branches, adds, prev = collections.defaultdict(list), {}, bytes(32)
    for n, path in enumerate(sorted(p for p in store.glob("log/*") if p.name.isdigit()), 1):
        data = path.read_bytes()
        for copy in data[:len(data) // 2], data[len(data) // 2:]:
            magic, length, digest = struct.unpack_from("<8sQ32s", copy.ljust(48))
            if magic == b"castlog\1" and blake(copy[48:48 + length], "log entry") == digest:
                break
        else:
            raise ValueError(f"{path}: neither copy is sound")
        entry = decode(copy[48:48 + length])
        links = entry["seq"], entry["prev"], entry["store"]
        want(links == (n, prev, store_id), f"{path}: does not follow entry {n - 1} of this store")
        prev = digest
        for change in entry["changes"]:
            match change:
                case ["add", branch, checkpoint, *_]:
                    branches[branch].append(checkpoint)
                    adds[checkpoint] = change
                case ["branch", name, to]:
                    past = branches[name]
                    kept = past[:past.index(to)] if to in past else []
                    branches[name] = [*kept, to] if to else []
                case ["features", [], _] | ["tag" | "condemn" | "verify", *_]:
                    pass  # they change no list
                case _:
                    raise ValueError(f"{path}: {change[0]}, which version 1 does not write")
    return branches, adds

class State:
    def __init__(self, store, packs):  # § 3: where each (kind, digest) is
        self.places, self.chunks, self.ties = collections.defaultdict(list), [], {}
        files = [(store / "packs" / save / name, pack_id)
                 for save, files in packs for name, pack_id, _ in files]
        for path, pack_id in sorted(files, key=lambda file: ".data." in file[0].name):
            pack = numpy.memmap(path, mode="r").data if path.exists() else b""
            at, length, _, check, magic = struct.unpack("<QQ32s8s8s", bytes(pack[-64:]).ljust(64))
            sound = magic == b"castore\x93" and blake(pack[-64:-16], "footer")[:8] == check
            tables = [(bytes(pack[:128]), bytes(pack[at:at + length]))] if sound else []
            tables += [self.fetch(*key)[1:] for key in [*self.places] if key[0] == 4]
            for table in (t for header, t in tables if blake(header + t, "pack") == pack_id):
                self.index(pack, *decode(table))

    def index(self, pack, digests, kinds, offsets, lengths, decoded, _, coded):
        numbers = [struct.unpack(f"<{len(kinds)}Q", c) for c in (offsets, lengths, decoded)]
        stored = {row: digest for row, digest, _ in coded}
        for row, (kind, digest, at, length, full) in enumerate(zip(kinds, split(digests), *numbers)):
            self.places[kind, digest].append((pack[at:at + length], stored.get(row), full))

    def fetch(self, kind, digest):  # § 3: any sound copy serves
        for data, stored_digest, length in self.places[kind, digest]:
            if blake(data) == stored_digest:
                data = zstandard.decompress(data)
            if len(data) == length and blake(data, KINDS[kind] if kind else None) == digest:
                return decode(bytes(data)) if kind else data
        raise ValueError(f"{KINDS[kind]} {digest.hex()}: no sound copy in the packs")

    def content(self, form, data):  # § 5
        while form == 2:  # chunk lists, level by level
            lists = [self.fetch(2, digest) for digest in split(data)]
            form, data = 2 if lists[0][0] else 1, b"".join(column for _, column in lists)
        if form == 1:
            self.chunks.append(data)
            data = b"".join(self.fetch(0, digest) for digest in split(data))
        return bytearray(data)

    def node(self, container, level, extra, items):  # § 5
        for _ in range(level):  # a split container, level by level
            items = [item for _, below in items for item in self.fetch(1, below)[3]]
        if container in ("list", "tuple", "set", "frozenset", "value"):
            return MAKERS[container](map(self.value, items))
        made = (collections.defaultdict(MAKERS.get(extra)) if container == "defaultdict"
                else MAKERS[container]())
        if container == "odict" and extra is not None:
            made._metadata = self.value(extra)
        for key, item in items:
            made[self.value(key)] = self.value(item)
        return made

    def value(self, value):  # § 5
        if not isinstance(value, list):
            return value
        tag, *fields = value
        if tag in ("node", "tree"):
            return self.node(*(fields[0] if tag == "node" else self.fetch(1, fields[0])))
        if tag in ("tensor", "ndarray"):
            *fields, content, tie = fields
            fields.append(self.ties[tie] if tie in self.ties else self.content(*content))
            self.ties |= {} if tie is None else {tie: fields[-1]}
        elif tag in ("int", "str", "bytes"):
            fields = [self.content(*fields[0])]
        want(tag in VALUES, f"this reader knows no {tag}")
        return VALUES[tag](*fields)

def load(store_path, branch="main", back=0):
    """A checkpoint's record and its state; back=1 is the one before the branch's last."""
    store = pathlib.Path(store_path)
    config = json.loads((store / "castore.json").read_text())  # § 2
    digest, bare = config.pop("digest"), json.dumps(config, indent=1)
