"""An independent reader of castore stores, written from docs/format.md alone (§: its sections).
What no digest vouches for raises ValueError. From a shell: independent_reader.py STORE [BRANCH]"""

# fmt: off
import collections, datetime as dt, json, pathlib, struct, sys  # noqa: E401, I001
import blake3, msgpack, numpy, torch, zstandard  # noqa: E401

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
def as_array(dtype, _, shape, raw):
    return numpy.ndarray(shape, numpy.dtype(dtype).newbyteorder("<"), raw).astype(dtype, copy=False)
def as_tensor(flags, dtype, _, shape, raw):
    made = torch.from_numpy(numpy.frombuffer(raw, "u1")).view(getattr(torch, dtype)).reshape(shape)
    return torch.nn.Parameter(made, flags > 1) if flags & 1 else made.requires_grad_(flags > 1)

KINDS = "chunk", "tree", "chunks", "checkpoint", "table", "intent"  # § 3, of records
MAKERS = {make.__name__: make for make in (list, tuple, set, frozenset, dict, int, float, str)}
MAKERS |= {"value": next, "odict": collections.OrderedDict, "counter": collections.Counter}
VALUES = {  # § 5, by tag, a content being its bytes; no struct dtypes, zones, generators, layouts
    "tensor": as_tensor, "ndarray": as_array, "torch.dtype": vars(torch).get,
    "npscalar": lambda dtype, raw: as_array(dtype, None, (), raw)[()],
    "int": lambda raw: int.from_bytes(raw, "little", signed=True), "bytes": bytes,
    "str": lambda raw: raw.decode("utf-8", "surrogatepass"),
    "complex": lambda raw: complex(*struct.unpack("<2d", raw)),
    "datetime": lambda iso, fold, tz: dt.datetime.fromisoformat(iso).replace(fold=fold, tzinfo=tz),
    "date": dt.date.fromisoformat, "timedelta": dt.timedelta, "torch.device": torch.device,
    "path": lambda kind, raw: getattr(pathlib, kind)(raw.decode()), "torch.Size": torch.Size}

def record_in(copy):
    return copy[48:48 + int.from_bytes(copy[8:16], "little")]
def read_log(store):  # § 2, § 6: the branches' lists, and every checkpoint's add
    config = json.loads((store / "castore.json").read_text("utf-8"))
    named, bare = config.pop("digest", None), json.dumps(config, indent=1)
    want(blake(bare.encode(), "config").hex() == named, "castore.json: wrong digest")
    branches, adds, prev = collections.defaultdict(list), {}, bytes(32)
    for n, path in enumerate(sorted(p for p in store.glob("log/*") if p.name.isdigit()), 1):
        half = len(data := path.read_bytes()) // 2
        sound = [copy for copy in (data[:half], data[half:]) if copy[:8] == b"castlog\1"
                 and blake(record_in(copy), "log entry") == copy[16:48]]
        want(sound, f"log entry {path.name}: neither copy is sound")
        entry = decode(record_in(sound[0]))
        links = entry["seq"], entry["prev"], entry["store"].hex()
        want(links == (n, prev, config["store_id"]), f"log entry {path.name}: does not belong here")
        prev = sound[0][16:48]
        for change in entry["changes"]:
            match change:
                case ["add", branch, checkpoint, *_]:
                    branches[branch].append(checkpoint)
                    adds[checkpoint] = change
                case ["branch", name, to]:
                    past = branches[name]
                    keep = past.index(to) if to in past else 0
                    branches[name] = [*past[:keep], to] if to else []
                case ["features", [], _] | ["tag" | "condemn" | "verify", *_]:
                    pass  # they change no list
                case _:
                    raise ValueError(f"{path.name}: {change}, which version 1 does not write")
    return branches, adds

class Checkpoint:
    def __init__(self, store, packs):  # § 3: where each (kind, digest) is
        self.places, self.chunks, self.ties = collections.defaultdict(list), [], {}
        ids = {store / "packs" / save / name: key for save, f in packs for name, key, _ in f}
        for path in sorted(ids, key=lambda path: ".data." in path.name):  # table copies come first
            pack = memoryview(path.read_bytes() if path.exists() else b"")
            at, length, _, check, magic = struct.unpack("<QQ32s8s8s", bytes(pack[-64:]).ljust(64))
            sound = magic == b"castore\x93" and blake(pack[-64:-16], "footer")[:8] == check
            own = [(bytes(pack[:128]), bytes(pack[at:at + length]))] if sound else []
            copies = (self.fetch(*key)[1:] for key in [*self.places] if key[0] == 4)
            tables = (t for p in (own, copies) for h, t in p if blake(h + t, "pack") == ids[path])
            if table := next(tables, None):
                digests, kinds, *numbers, _, coded = decode(table)
                numbers = [numpy.frombuffer(column, "<u8").tolist() for column in numbers]
                stored = {row: digest for row, digest, _ in coded}
                rows = zip(kinds, split(digests), *numbers, strict=True)
                for row, (kind, digest, at, length, full) in enumerate(rows):
                    self.places[kind, digest].append((pack[at:at + length], stored.get(row), full))
    def fetch(self, kind, digest):  # § 3: any sound copy serves
        for data, stored_digest, length in self.places[kind, digest]:
            if stored_digest and blake(data) == stored_digest:
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
        return VALUES[tag](*fields)

def load(store_path, branch="main", back=0):  # back=1: the checkpoint before the branch's last
    branches, adds = read_log(store := pathlib.Path(store_path))
    want(len(branches[branch]) > back, f"branch {branch}: no checkpoint {back} before its last")
    add = adds[branches[branch][-1 - back]]
    reader = Checkpoint(store, packs=add[-1])
    checkpoint = reader.fetch(3, digest=add[2])
    want([checkpoint[f] for f in ("root", "contents", "parent")] == add[3:6], "not what was added")
    state = reader.node(*reader.fetch(1, checkpoint["root"]))
    want(blake(b"".join(reader.chunks), "contents") == checkpoint["contents"], "wrong contents")
    return checkpoint, state

def paths(value, at=""):
    if isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from paths(item, f"{at}[{key!r}]")
    else:
        yield f"{at} {getattr(value, 'dtype', type(value))} {[*getattr(value, 'shape', ())]}"

if __name__ == "__main__":
    store, branch = [*sys.argv[1:], "main"][:2]
    branches, adds = read_log(pathlib.Path(store))
    for digest in branches[branch]:
        print(digest.hex(), "step", adds[digest][6], adds[digest][14] or "")
    print(*paths(load(store, branch)[1]), sep="\n")
