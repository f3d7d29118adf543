"""A store of two dicts: describe, hash and encode a state, and plan, fill and finish it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from castore.model.digest import Digest, Kind, chunk_digest
from castore.model.objects import DataValue, encode_tree
from castore.state import Description, Plan, describe, plan_state

CHUNK_SIZE = 4096


@dataclass
class Memory:
    """Objects and chunks by digest."""

    chunk_size: int = CHUNK_SIZE
    objects: dict[tuple[Kind, Digest], bytes] = field(default_factory=dict)
    chunks: dict[Digest, bytes] = field(default_factory=dict)

    def hash(self, content: DataValue) -> list[Digest]:
        view = content.source.view()
        digests = []
        for start, stop in content.grid.spans():
            if view is None:
                buffer = bytearray(stop - start)
                content.source.fill(memoryview(buffer), start)
                data = bytes(buffer)
            else:
                data = bytes(view[start:stop])
            digest = chunk_digest(data)
            self.chunks[digest] = data
            digests.append(digest)
        return digests

    def put(self, description: Description) -> Digest:
        for content in description.contents:
            content.digests = self.hash(content)
        return encode_tree(
            description.root, lambda kind, digest, data: self.objects.update({(kind, digest): data})
        )

    def save(self, state: Any) -> Digest:
        return self.put(describe(state, self.chunk_size))

    def fetch(self, kind: Kind, digest: Digest) -> bytes:
        return self.objects[kind, digest]

    def plan(self, value: Any, **options: Any) -> Plan:
        return plan_state(value, self.fetch, self.chunk_size, **options)

    def fill(self, plan: Plan) -> None:
        for read in plan.reads:
            parts = [self.chunks[digest] for digest in read.digests]
            out = read.out
            if out is None:
                read.data = b"".join(parts)
                continue
            assert len(out) == read.grid.nbytes == read.nbytes
            for (start, stop), part in zip(read.grid.spans(), parts, strict=True):
                out[start:stop] = part

    def load(self, value: Any, **options: Any) -> Any:
        plan = self.plan(value, **options)
        self.fill(plan)
        return plan.finish()


def round_trip(state: Any, chunk_size: int = CHUNK_SIZE) -> Any:
    memory = Memory(chunk_size)
    return memory.load(memory.save(state))
