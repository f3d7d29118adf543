"""A store's medium in memory, for tests that read and damage bytes by the thousand."""

from __future__ import annotations

from castore.storage.protocol import check_name

__all__ = ["MemoryStorage"]


class _MemoryFile:
    def __init__(self, files: dict[str, bytearray], name: str) -> None:
        self._data = files[name] = bytearray()

    @property
    def position(self) -> int:
        return len(self._data)

    def append(self, data: bytes | bytearray | memoryview) -> None:
        self._data += data

    def finish(self) -> int:
        self._data += bytes(-len(self._data) % 4096)
        return len(self._data)

    def abandon(self) -> None:
        pass


class MemoryStorage:
    """See :class:`castore.storage.protocol.Storage`; ``files`` may be changed by the test."""

    where = "memory"

    def __init__(self) -> None:
        self.files: dict[str, bytearray] = {}

    def _file(self, name: str) -> bytearray:
        check_name(name)
        if name not in self.files:
            raise FileNotFoundError(2, "No such file", name)
        return self.files[name]

    def read(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._file(name)
        return bytes(data[offset:] if length is None else data[offset : offset + length])

    def read_into(self, name: str, offset: int, out: memoryview, *, device: bool = False) -> int:
        part = self._file(name)[offset : offset + len(out)]
        out[: len(part)] = part
        return len(part)

    def map(self, name: str, length: int) -> None:
        self._file(name)

    def size(self, name: str) -> int | None:
        check_name(name)
        return len(self.files[name]) if name in self.files else None

    def create(self, name: str, data: bytes) -> bool:
        check_name(name)
        if name in self.files:
            return False
        self.files[name] = bytearray(data)
        return True

    def new_file(self, name: str) -> _MemoryFile:
        check_name(name)
        if name in self.files:
            raise FileExistsError(17, "File exists", name)
        return _MemoryFile(self.files, name)

    def list(self, folder: str = "") -> list[str]:
        prefix = f"{folder}/" if folder else ""
        inside = (name[len(prefix) :] for name in self.files if name.startswith(prefix))
        return sorted({name.partition("/")[0] for name in inside})

    def delete(self, name: str) -> bool:
        return self.files.pop(name, None) is not None

    def make_folder(self, name: str) -> None:
        check_name(name)

    def remove_folder(self, name: str) -> bool:
        return False

    def sync_folder(self, name: str) -> None:
        pass

    def write_advice(self, name: str, data: bytes) -> None:
        self.files[name] = bytearray(data)

    def modified(self, name: str) -> float | None:
        return 0.0 if name in self.files else None

    def free(self) -> int:
        return 1 << 40

    def close(self) -> None:
        pass
