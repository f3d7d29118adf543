"""Verbs that look at objects: ``ls-tree`` and ``cat-file``.

They print as git's do.  A value's digest is the root that a state of just this value has, so that
equal values have equal digests wherever they lie; docs/format.md has the objects themselves.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import click

from castore.cli import output
from castore.cli.common import (
    DAMAGE_EXITS,
    REVISIONS,
    Verb,
    complete_refs,
    json_option,
    open_found,
    store_option,
)
from castore.errors import BadRevision, UsageError
from castore.reports import StoredObject, TreeEntry

if TYPE_CHECKING:
    from castore.store import Store

__all__ = ["cat_file", "ls_tree"]

#: Bytes of a chunk or byte string that ``cat-file -p`` shows.
SHOWN_BYTES = 256


# -- ls-tree ------------------------------------------------------------------------------------


class _LsTreeVerb(Verb):
    bare: ClassVar[Mapping[str, str]] = {"--abbrev": "12"}


@click.command(
    "ls-tree",
    cls=_LsTreeVerb,
    short_help="What a container of a state holds.",
    epilog=DAMAGE_EXITS,
    help=f"""\
List what a checkpoint's state, or the container at a key path in it, holds:
a line an entry, as git's ls-tree has it:

  <object> <kind> <digest><TAB><key path>

The object is tree (a container), tensor (arrays too) or value; the kind is
dict, list, tensor, ndarray, int, str, ... The digest names the value: it is
the root that a state of just this value has, so equal values have equal
digests in every checkpoint and store. With -l comes the size in bytes before
the tab ('-' where only its chunks know it), and dtype and shape of a tensor.

{REVISIONS}
With PATHs only these are listed; a PATH that ends in '/' stands for what is
in the container. Without -r no container is entered. Key paths are whole,
ready for REV:PATH, and never hold a tab or a newline.

Reads the checkpoint's metadata, and no tensor.

  castore ls-tree main
  castore ls-tree -l main:model
  castore ls-tree -r --name-only main
  castore ls-tree main step optimizer/
  castore ls-tree -r main~1 | grep -vxFf <(castore ls-tree -r main)""",
)
@click.argument("rev", metavar="REV[:PATH]", shell_complete=complete_refs)
@click.argument("paths", nargs=-1, metavar="[PATH...]")
@click.option("-r", "recurse", is_flag=True, help="Enter containers; list what is none.")
@click.option("-t", "trees_too", is_flag=True, help="With -r: list containers as well.")
@click.option("-d", "trees_only", is_flag=True, help="List only containers.")
@click.option("-l", "--long", "sizes", is_flag=True, help="With size, dtype and shape.")
@click.option("-z", "zeros", is_flag=True, help="End each line with a NUL, not a newline.")
@click.option("--name-only", is_flag=True, help="Print key paths alone.")
@click.option("--object-only", is_flag=True, help="Print digests alone.")
@click.option(
    "--abbrev",
    type=click.IntRange(min=6, max=64),
    metavar="[=N]",
    help="Shorten digests to 12 digits, or to N.",
)
@json_option
@store_option
def ls_tree(
    rev: str,
    paths: tuple[str, ...],
    recurse: bool,
    trees_too: bool,
    trees_only: bool,
    sizes: bool,
    zeros: bool,
    name_only: bool,
    object_only: bool,
    abbrev: int | None,
    as_json: bool,
) -> None:
    """Run ``castore ls-tree``."""
    if sum((sizes, name_only, object_only)) > 1:
        raise UsageError("-l, --name-only and --object-only exclude one another")
    with open_found() as store:
        entries = list(_listed(store, rev, paths, recurse))
    for entry in entries:
        # As in git, -r leaves out what it enters; an empty container would be lost from sight.
        entered = recurse and bool(entry.entries)
        if entry.entries is None if trees_only else entered and not trees_too:
            continue
        if as_json:
            output.emit("value", entry.to_dict())
        else:
            if name_only:
                line = output.clean(entry.path)
            elif object_only:
                line = entry.digest[:abbrev]
            else:
                line = _tree_line(entry, sizes, abbrev)
            output.say(line, end="\0" if zeros else "\n")


def _listed(store: Store, rev: str, paths: tuple[str, ...], recurse: bool) -> Iterator[TreeEntry]:
    """The entries that were asked for, without the container that was named."""
    base, _, below = rev.partition(":")
    # By digest: of several paths all are of one checkpoint, whatever is saved between.
    checkpoint = store.log(base, limit=1)[0].digest
    below = below.strip("/")
    for path in paths or ("/",):
        at = f"{below}/{path}".strip("/")
        inside = not path or path.endswith("/")
        depth = None if recurse else int(inside)
        entry, *rest = store.tree(f"{checkpoint}:{at}", depth=depth)
        if inside and entry.entries is None:
            raise BadRevision(
                f"{at or rev} is no container: its kind is {entry.kind}; `castore show "
                f"{base}:{at}` shows it"
            )
        yield from rest if inside else [entry, *rest]


def _tree_line(entry: TreeEntry, sizes: bool, abbrev: int | None = None) -> str:
    line = f"{entry.object} {entry.kind} {entry.digest[:abbrev]}"
    if sizes:
        line += f" {'-' if entry.nbytes is None else entry.nbytes:>7}"
        if entry.shape is not None and entry.dtype is not None:
            line += f" {output.clean(entry.dtype)}[{','.join(map(str, entry.shape))}]"
    return f"{line}\t{output.clean(entry.path)}"


# -- cat-file -----------------------------------------------------------------------------------


@click.command(
    "cat-file",
    cls=Verb,
    short_help="Type, size, contents of what a digest names.",
    epilog=DAMAGE_EXITS,
    help=f"""\
Tell what OBJECT is: -t its type, -s its size in bytes, -p what is in it, -e
by the exit alone whether it is there and sound; --raw writes its bytes.

OBJECT is REV, REV:PATH, or six or more digits of any digest: a checkpoint's,
one that ls-tree or log printed, a chunk's.
{REVISIONS}

The type is checkpoint, tree, tensor, value, chunk, or chunks (a long chunk
list); also table and intent, which a save keeps for itself. The size is that
of the contents of a tensor, text or chunk, else that of the encoding.

-p prints a checkpoint's record, what a tree holds, dtype, shape and chunks of
a tensor, the value itself, and of a chunk where it lies and how it begins.
--raw is for pipes and files, and refuses a terminal: a tensor's elements
(contiguous, little-endian), a text's or chunk's bytes, else the encoding.
Each piece is hashed before it is written.

A revision is looked up in the log. Any other digest is looked for in the
tables of all packs; if it names what lies inside a tree, in all metadata.

  castore cat-file -t main:model
  castore cat-file -p main
  castore cat-file -p $(castore rev-parse main:model/layers.0.weight)
  castore cat-file -s main:model/layers.0.weight
  castore cat-file --raw main:model/layers.0.weight > weight.f32
  if castore cat-file -e v1:model; then echo there; fi""",
)
@click.argument("name", metavar="OBJECT", shell_complete=complete_refs)
@click.option("-t", "what", flag_value="type", help="Print its type.")
@click.option("-s", "what", flag_value="size", help="Print its size in bytes.")
@click.option("-p", "what", flag_value="print", help="Print what is in it.")
@click.option("-e", "what", flag_value="exists", help="Say nothing; the exit tells.")
@click.option("--raw", "what", flag_value="raw", help="Write its bytes to a pipe or file.")
@json_option
@store_option
def cat_file(name: str, what: str | None, as_json: bool) -> None:
    """Run ``castore cat-file``."""
    if what is None and not as_json:
        raise UsageError("say what of it: -t (type), -s (size), -p (print), -e (exists) or --raw")
    if what == "raw":
        if as_json:
            raise UsageError("--raw writes bytes: it does not go with --json")
        if sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("--raw writes bytes, which a terminal cannot show: > FILE, or | xxd")
        with open_found() as store:
            for piece in store.read_object(name):
                output.pour(piece)
        return
    try:
        with open_found() as store:
            found = store.find_object(name)
            data = _begin(store, found) if what == "print" and not as_json else b""
    except UsageError as e:
        if what != "exists":
            raise
        click.get_current_context().exit(e.exit_code)
    if what == "exists":
        return
    if as_json:
        output.emit("object", found.to_dict())
    elif what == "type":
        output.say(found.object)
    elif what == "size":
        output.say(str(found.size))
    else:
        for line in _printed(found, data):
            output.say(line)


def _begin(store: Store, found: StoredObject) -> bytes:
    """The bytes that ``-p`` shows: a text whole, of a chunk or byte string the beginning."""
    kind = found.entry.kind if found.entry else found.object
    if kind not in ("str", "bytes", "chunk"):
        return b""
    data = bytearray()
    for piece in store.read_object(found.name):
        data += piece
        if kind != "str" and len(data) >= SHOWN_BYTES:
            break
    return bytes(data)


def _printed(found: StoredObject, data: bytes) -> Iterator[str]:
    """An object for people, as ``-p`` prints it."""
    entry = found.entry
    if found.object == "checkpoint":
        yield from _record_lines(found.fields or {})
    elif found.object == "tree":
        yield from (_tree_line(e, sizes=True) for e in found.entries)
    elif found.object == "chunk":
        yield f"size {found.size}"
        yield from _place_lines(found)
        yield ""
        yield from _hex_lines(data, found.size)
    elif entry is None:
        yield from _field_lines(found.fields or {})
        yield from found.chunks
    elif entry.kind == "str":
        yield output.clean(data.decode("utf-8", "surrogatepass"))
    elif entry.kind == "bytes":
        yield from _hex_lines(data, found.size)
    elif entry.shape is not None or found.chunks:
        about = {
            "kind": entry.kind,
            "dtype": entry.dtype,
            "shape": None if entry.shape is None else list(entry.shape),
            "size": found.size,
            "tie": entry.tie,
        }
        yield from _field_lines({k: v for k, v in about.items() if v is not None})
        yield from (f"chunk {digest}" for digest in found.chunks)
    else:
        yield output.clean(entry.text if entry.text is not None else entry.kind)


def _record_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    """A checkpoint as git shows a commit: fields, a blank line, the message."""
    yield from _field_lines({k: v for k, v in fields.items() if k != "message" and v is not None})
    if fields.get("message") is not None:
        yield ""
        yield output.clean(fields["message"])


def _field_lines(fields: Mapping[str, Any]) -> Iterator[str]:
    for name, value in fields.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        yield f"{name} {output.clean(text)}".replace("\n", "\\n")


def _place_lines(found: StoredObject) -> Iterable[str]:
    for place in found.places:
        how = "" if place.codec == "raw" else f", {place.stored} bytes as {place.codec}"
        yield f"in packs/{place.pack} at offset {place.offset}{how}"


def _hex_lines(data: bytes, size: int) -> Iterator[str]:
    """Bytes as ``xxd`` has them, and how many more there are."""
    shown = data[:SHOWN_BYTES]
    for at in range(0, len(shown), 16):
        line = shown[at : at + 16]
        pairs = " ".join(line[i : i + 2].hex() for i in range(0, len(line), 2))
        text = "".join(chr(b) if 0x20 <= b < 0x7F else "." for b in line)
        yield f"{at:08x}: {pairs:<39}  {text}"
    if size > len(shown):
        yield f"... {size - len(shown):,} bytes more; --raw writes them all"
