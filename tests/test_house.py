"""The house (docs/architecture.md): arrows run downwards only, and each thing is done in one place.

Everything here reads the sources; only the last tests run them.  A rule that needs an exception
gets it in a table below, with the reason.
"""

from __future__ import annotations

import ast
import functools
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "castore"

# --- the rules ----------------------------------------------------------------------------------

#: Bottom first.  A module may import from levels below its own, and from its own part of the house;
#: never upwards, and never from a sibling on its level.
LEVELS = [
    {"errors", "reports", "system"},
    {"storage", "model"},
    {"log", "packs", "state"},
    {"pipeline", "upkeep", "formats"},
    {"inspection"},
    {"store"},
    {"opening"},
    {"cli", "integrations"},
    {"__main__"},
]

#: (importing module, imported module): why it may.  Beside the levels above.
ARROW_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("castore.pipeline.save", "castore.upkeep.sessions"): (
        "a save opens the session that upkeep looks at"
    ),
}

#: The face, `import castore` itself, is for users; inside, only these speak through it.
FACE_USERS = {"cli", "integrations", "__main__"}

#: Heavy imports -> parts that may have them at a module's top.
HEAVY_AT_TOP = {
    "torch": {"state", "integrations"},
    "numpy": {"state", "integrations"},
    "rich": set(),
}
#: Heavy imports -> parts that may have them anywhere, functions included.
HEAVY_ANYWHERE = {"torch": {"state", "integrations"}, "rich": {"cli"}}

#: Modules outside storage that touch files: why they may, and by which names.
FILE_EXCEPTIONS: dict[str, tuple[set[str], str]] = {
    "castore.packs.index": (
        {"*"},
        "LMDB maps its own files; the index is a cache, and the store's truth does not rest on it",
    ),
    "castore.system": (
        {"os.readlink", "read_text"},
        "asks /proc who this process is; touches nothing of a store",
    ),
}

#: All of `os` that is not file I/O and may be used outside storage.
OS_ALLOWED = {
    "os.PathLike",
    "os.cpu_count",
    "os.fspath",
    "os.getpid",
    "os.path",  # its pure half: see OS_PATH_IO
    "os.register_at_fork",
    "os.sched_getaffinity",
    "os.sep",
    "os.strerror",
}
OS_PATH_IO = {
    "exists", "getatime", "getctime", "getmtime", "getsize", "isdir", "isfile", "islink", "ismount",
    "lexists", "realpath", "samefile",
}  # fmt: skip
#: Modules whose business is file I/O.
FILE_MODULES = {"shutil", "tempfile", "fcntl", "glob", "fileinput", "io.open", "io.FileIO"}
#: Methods of pathlib.Path that touch a disk and whose names say so whatever they are called on.
PATH_METHODS = {
    "read_bytes", "read_text", "write_bytes", "write_text", "hardlink_to", "symlink_to", "iterdir",
    "rglob", "is_file", "is_dir", "is_symlink", "is_mount", "lstat", "touch", "rmdir",
}  # fmt: skip
#: More of them, with names that others have too: only where called on Path(...) itself.
PATH_METHODS_ON_PATH = {
    "resolve", "open", "unlink", "rename", "replace", "mkdir", "exists", "stat", "glob",
}  # fmt: skip

CLOCK = {
    "time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.ctime", "time.monotonic",
    "time.monotonic_ns", "time.perf_counter", "time.perf_counter_ns", "time.clock_gettime",
    "datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today",
    "datetime.date.today",
}  # fmt: skip
ENVIRONMENT = {"os.environ", "os.environb", "os.getenv", "os.putenv", "os.unsetenv"}
CLOCK_AND_ENVIRONMENT_HOME = "castore.system"

# --- reading the sources ------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    target: str  # dotted; a module where castore has one of that name, else a module's member
    line: int
    top: bool  # runs when the module is imported
    typing_only: bool  # under `if TYPE_CHECKING`


class Module:
    """One source file: its imports, and the dotted names it uses, aliases resolved."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        self.is_package = parts[-1] == "__init__"
        self.name = ".".join(parts[:-1] if self.is_package else parts)
        self.imports: list[Import] = []
        self.aliases: dict[str, str] = {}
        self._scan(self.tree, top=True, typing_only=False)

    @property
    def part(self) -> str:
        """The part of the house: `packs` for castore.packs.writer, `` for the face."""
        return self.name.partition(".")[2].partition(".")[0]

    def where(self, line: int) -> str:
        return f"{self.path.relative_to(ROOT)}:{line}"

    def _scan(self, node: ast.AST, *, top: bool, typing_only: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    self.imports.append(Import(alias.name, child.lineno, top, typing_only))
                    bound = alias.asname or alias.name.partition(".")[0]
                    self.aliases[bound] = alias.name if alias.asname else bound
            elif isinstance(child, ast.ImportFrom):
                base = self._base(child)
                for alias in child.names:
                    target = f"{base}.{alias.name}"
                    self.imports.append(Import(target, child.lineno, top, typing_only))
                    self.aliases[alias.asname or alias.name] = target
            else:
                function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
                if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                    for statement in child.body:
                        wrapper = ast.Module([statement], [])
                        self._scan(wrapper, top=top, typing_only=True)
                    for statement in child.orelse:
                        wrapper = ast.Module([statement], [])
                        self._scan(wrapper, top=top, typing_only=typing_only)
                    continue
                self._scan(child, top=top and not function, typing_only=typing_only)

    def _base(self, node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        package = self.name.split(".")
        if not self.is_package:
            package = package[:-1]
        package = package[: len(package) - (node.level - 1)]
        return ".".join([*package, *([node.module] if node.module else [])])

    def dotted(self, node: ast.AST) -> str | None:
        """`os.path.join` for such an expression, with import aliases resolved."""
        names = []
        while isinstance(node, ast.Attribute):
            names.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        first = self.aliases.get(node.id)
        return ".".join([first, *reversed(names)]) if first else None

    def uses(self) -> Iterator[tuple[str, int]]:
        """Every dotted name used that leads to an import, the longest form of each."""
        inner: set[int] = set()
        for node in ast.walk(self.tree):
            if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner:
                inner.add(id(getattr(node, "value", None)))
                if name := self.dotted(node):
                    yield name, node.lineno


@functools.cache
def modules() -> tuple[Module, ...]:
    found = tuple(Module(path) for path in sorted(PACKAGE.rglob("*.py")))
    assert found, "castore/ is not there"
    return found


@functools.cache
def module_names() -> frozenset[str]:
    return frozenset(module.name for module in modules())


def module_of(target: str) -> str:
    """The castore module that an imported dotted name belongs to."""
    while target not in module_names() and "." in target:
        target = target.rpartition(".")[0]
    return target


def level_of(part: str) -> int:
    levels = [number for number, parts in enumerate(LEVELS) if part in parts]
    assert levels, f"castore/{part} has no place in the house: add it to LEVELS, and to the docs"
    return levels[0]


def none(problems: list[str]) -> None:
    assert not problems, "\n" + "\n".join(problems)


# --- (a) the arrows -----------------------------------------------------------------------------


def test_every_part_has_a_place() -> None:
    for module in modules():
        if module.part:
            level_of(module.part)


def test_arrows_run_downwards_only() -> None:
    problems = []
    for module in modules():
        for imported in module.imports:
            if imported.target.partition(".")[0] != "castore":
                continue
            target = module_of(imported.target)
            part = target.partition(".")[2].partition(".")[0]
            where = f"{module.where(imported.line)}: {module.name} imports {imported.target}"
            if (module.name, target) in ARROW_EXCEPTIONS:
                continue
            if not module.part:  # the face
                eager = imported.top and not imported.typing_only
                if eager and part and level_of(part) > 0:
                    problems.append(f"{where}: the face is lazy")
            elif not part:
                if module.part not in FACE_USERS:
                    problems.append(f"{where}: the face is for users")
            elif part != module.part and level_of(part) >= level_of(module.part):
                kind = "sideways" if level_of(part) == level_of(module.part) else "upwards"
                problems.append(f"{where}: {kind}")
    none(problems)


def test_arrow_exceptions_are_needed() -> None:
    arrows = {
        (module.name, module_of(imported.target))
        for module in modules()
        for imported in module.imports
    }
    assert set(ARROW_EXCEPTIONS) <= arrows, "an exception that nothing needs any more"


def test_no_import_cycles_within_a_part() -> None:
    graph = {
        module.name: {
            module_of(i.target)
            for i in module.imports
            if i.top and not i.typing_only and i.target.startswith("castore.")
        }
        - {module.name}
        for module in modules()
    }
    done: set[str] = set()

    def visit(name: str, trail: tuple[str, ...]) -> None:
        assert name not in trail, f"a cycle of imports: {' -> '.join([*trail, name])}"
        if name not in done:
            for target in sorted(graph.get(name, ())):
                visit(target, (*trail, name))
            done.add(name)

    for name in sorted(graph):
        visit(name, ())


def test_heavy_imports_are_where_they_belong() -> None:
    problems = []
    for module in modules():
        for imported in module.imports:
            name = imported.target.partition(".")[0]
            where = f"{module.where(imported.line)}: {module.name} imports {name}"
            if imported.typing_only:
                continue
            if name in HEAVY_AT_TOP and imported.top and module.part not in HEAVY_AT_TOP[name]:
                problems.append(f"{where} at its top")
            if name in HEAVY_ANYWHERE and module.part not in HEAVY_ANYWHERE[name]:
                problems.append(f"{where}: {' and '.join(sorted(HEAVY_ANYWHERE[name]))} only")
    none(problems)


# --- (b) file I/O -------------------------------------------------------------------------------


def file_uses(module: Module) -> Iterator[tuple[str, int]]:
    """What in a module touches a file, or could."""
    for name, line in module.uses():
        if name.startswith("os.path."):
            if name.split(".")[2] in OS_PATH_IO:
                yield name, line
        elif name.startswith("os."):
            if ".".join(name.split(".")[:2]) not in OS_ALLOWED | ENVIRONMENT:
                yield name, line
        elif name in FILE_MODULES or name.partition(".")[0] in FILE_MODULES:
            yield name, line
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        if module.dotted(node.func) == "mmap.mmap":
            if not (node.args and ast.unparse(node.args[0]) == "-1"):  # -1: memory, no file
                yield "mmap.mmap", node.lineno
        elif isinstance(node.func, ast.Name) and node.func.id == "open":
            if module.aliases.get("open") is None:
                yield "open", node.lineno
        elif isinstance(node.func, ast.Attribute):
            on = node.func.value
            on_path = isinstance(on, ast.Call) and module.dotted(on.func) == "pathlib.Path"
            method = node.func.attr
            if method in PATH_METHODS or (on_path and method in PATH_METHODS_ON_PATH):
                yield method, node.lineno


def test_only_storage_touches_files() -> None:
    problems = []
    for module in modules():
        if module.part == "storage":
            continue
        allowed, _reason = FILE_EXCEPTIONS.get(module.name, (set(), ""))
        for name, line in file_uses(module):
            if not allowed & {name, "*"}:
                problems.append(f"{module.where(line)}: {name}")
    none(problems)


def test_file_exceptions_are_needed() -> None:
    used = {module.name: {name for name, _ in file_uses(module)} for module in modules()}
    for module_name, (names, _reason) in FILE_EXCEPTIONS.items():
        assert module_name in used, f"{module_name} is not there"
        assert names - {"*"} <= used[module_name], f"{module_name}: an exception that nothing needs"


def test_no_locks_in_the_protocol() -> None:
    problems = [
        f"{module.where(line)}: {name}"
        for module in modules()
        for name, line in module.uses()
        if name.partition(".")[0] == "fcntl" and "lock" in name.lower()
    ]
    none(problems)


def test_no_pickle_anywhere() -> None:
    banned = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
    problems = [
        f"{module.where(imported.line)}: {imported.target}"
        for module in modules()
        for imported in module.imports
        if imported.target.partition(".")[0] in banned
    ]
    problems += [
        f"{module.where(line)}: {name}"
        for module in modules()
        for name, line in module.uses()
        if name in {"torch.load", "torch.save", "numpy.load", "numpy.save"}
    ]
    none(problems)


# --- (c) the clock and the environment ----------------------------------------------------------


def test_one_place_reads_the_clock_and_the_environment() -> None:
    problems = []
    for module in modules():
        if module.name == CLOCK_AND_ENVIRONMENT_HOME:
            continue
        for name, line in module.uses():
            if any(name == n or name.startswith(n + ".") for n in CLOCK | ENVIRONMENT):
                problems.append(f"{module.where(line)}: {name}")
    none(problems)


# --- (e) docstrings, types ----------------------------------------------------------------------


def test_every_module_says_what_it_is() -> None:
    none([m.where(1) + ": no docstring" for m in modules() if not ast.get_docstring(m.tree)])


def test_reports_are_frozen() -> None:
    [reports] = [module for module in modules() if module.name == "castore.reports"]
    for node in reports.tree.body:
        if isinstance(node, ast.ClassDef):
            made = [ast.unparse(decorator) for decorator in node.decorator_list]
            assert any("dataclass(" in d and "frozen=True" in d for d in made), node.name


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()


# --- (d) what gets imported when it runs --------------------------------------------------------

#: Runs the command line in this process's place, then tells which heavy modules came in.
RUN_CLI = """
import runpy, sys
sys.argv = ["castore", *sys.argv[1:]]
status = 0
try:
    runpy.run_module("castore", run_name="__main__", alter_sys=True)
except SystemExit as end:
    status = end.code or 0
print("HEAVY", *sorted({"torch", "numpy", "rich"} & set(sys.modules)), file=sys.stderr)
sys.exit(status)
"""

IMPORT = (
    'import sys, castore; print("HEAVY", *sorted({"torch", "numpy", "rich"} & set(sys.modules)))'
)


def heavy_imports(code: str, *arguments: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONWARNINGS": "error"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    [line] = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("HEAVY")]
    return set(line.split()[1:])


@pytest.fixture(scope="module")
def small_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch

    import castore

    path = tmp_path_factory.mktemp("house") / "runs.castore"
    for step in (1, 2):
        castore.save({"weight": torch.full((1000,), float(step))}, path, step=step)
    return path


def test_import_castore_is_light() -> None:
    assert heavy_imports(IMPORT) == set()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["log"], ["log", "--json"], ["rev-parse", "main~1"], ["show", "main"], ["info"]],
    ids=" ".join,
)
def test_cli_is_light(small_store: Path, arguments: list[str]) -> None:
    assert heavy_imports(RUN_CLI, "-s", str(small_store), *arguments) == set()


@pytest.mark.parametrize("arguments", [["fsck"], ["gc"]], ids=" ".join)
def test_cli_needs_no_torch_to_check_and_clean(small_store: Path, arguments: list[str]) -> None:
    assert "torch" not in heavy_imports(RUN_CLI, "-s", str(small_store), *arguments)
