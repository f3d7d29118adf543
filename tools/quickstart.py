"""castore's main job, shown.

Train, be killed in the middle of a save, resume bit for bit, fine-tune at the price of what
changed, have a flipped bit named.  Drives ``train_example.py`` and the ``castore`` command from
outside, as a person would, and checks each claim as it goes; exits 1 if one does not hold.  Uses
castore's public face only.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import castore

HERE = Path(__file__).resolve().parent
#: Says that a folder was made by this script, so that the next run may remove it.
MARKER = ".made-by-castore-quickstart"

STEPS = 50  # of the pre-training, each run
SAVE_EVERY = 5
FINE_TUNE_STEPS = 20
KILL_AFTER = 15  # a save after this step is killed; a later one, if the save beats the kill
FURTHER = 20  # losses that must be equal at the least; the control trains this many

QUOTED_LINES = 40  # of what a command prints
#: What trees, tables and a log entry may add to a save of a small model, twins included.
METADATA_ALLOWANCE = 256 * 1024

STARTED = time.monotonic()


# --- telling ------------------------------------------------------------------------------------


class Failed(Exception):
    """A claim that does not hold, or a step that did not work."""


class Out:
    """What the reader of the terminal sees."""

    terminal = sys.stdout.isatty()
    transient = False

    @classmethod
    def line(cls, text: str = "") -> None:
        """A line that stays."""
        if cls.transient:
            sys.stdout.write("\r\033[K")
            cls.transient = False
        print(text, flush=True)

    @classmethod
    def progress(cls, text: str, *, keep: bool) -> None:
        """A line that the next one replaces on a terminal; elsewhere shown only if ``keep``."""
        text = f"  [{time.monotonic() - STARTED:4.0f} s] {text}"
        if cls.terminal:
            sys.stdout.write("\r\033[K" + text[: shutil.get_terminal_size().columns - 1])
            sys.stdout.flush()
            cls.transient = True
        elif keep:
            print(text, flush=True)

    @classmethod
    def text(cls, text: str) -> None:
        """A paragraph."""
        cls.line(
            textwrap.fill(" ".join(text.split()), 96, initial_indent="  ", subsequent_indent="  ")
        )

    @classmethod
    def title(cls, number: int, text: str) -> None:
        """The beginning of one of the five parts."""
        cls.line(f"\n[{number}/5] {text}")

    @classmethod
    def quote(cls, command: str, text: str) -> None:
        """A command and what it printed; of much, the beginning."""
        cls.line(f"\n  $ {command}")
        lines = text.rstrip().splitlines()
        shown = lines if len(lines) <= QUOTED_LINES else lines[: QUOTED_LINES - 1]
        for line in shown:
            cls.line(f"  | {line}")
        if len(shown) < len(lines):
            cls.line(f"  | ... and {len(lines) - len(shown):,} lines more")


def claim(text: str, holds: bool, otherwise: str = "") -> None:
    """State what must hold; end the run where it does not."""
    if not holds:
        raise Failed(f"{text}: does NOT hold. {otherwise}".rstrip())
    Out.line(f"  ok: {text}")


def size(n: float) -> str:
    """Bytes for people."""
    for unit in ("B", "kB", "MB"):
        if n < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} GB"


def disk_use(folder: Path) -> int:
    """Bytes that the truth of a store takes: the index is a cache, the reserve is set aside."""
    return sum(
        file.stat().st_size
        for part in ("castore.json", "packs", "log")
        for file in [folder / part, *(folder / part).rglob("*")]
        if file.is_file()
    )


# --- the training, watched from outside ---------------------------------------------------------


class Training:
    """A ``train_example.py`` that runs as a process of its own; its lines are read as they come."""

    def __init__(self, store: Path, *arguments: object, on_save: Callable[[int], None] = int):
        command = [sys.executable, str(HERE / "train_example.py"), str(store)]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.losses: dict[int, str] = {}  # step -> the loss, every bit of it
        self.saved = 0  # the newest step whose save was acknowledged
        self.resumed: int | None = None
        self.text: list[str] = []
        self.latest = "starting"
        self.on_save = on_save
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        ALL_TRAININGS.append(self)

    @property
    def safe(self) -> int:
        """The newest step that this process knows to be in the store."""
        return max(self.saved, self.resumed or 0)

    def _read(self) -> None:
        for line in self.process.stdout or ():
            self.text.append(line)
            self.latest = line.strip()
            if match := re.match(r"step (\d+) loss \S+ (\S+)", line):
                self.losses[int(match[1])] = match[2]
                self.latest = line.rpartition(" ")[0]
            elif match := re.match(r"saved step (\d+)", line):
                self.saved = int(match[1])
                self.on_save(self.saved)
            elif match := re.match(r"resumed from .* at step (\d+)", line):
                self.resumed = int(match[1])

    def watch(self, name: str, until: Callable[[], bool] = lambda: False) -> None:
        """Show progress until the process ends or ``until`` holds."""
        shown = ""
        while self.reader.is_alive() and not until():
            if shown != self.latest:
                shown = self.latest
                # Piped, every step would be a page: what was saved is enough.
                Out.progress(f"{name}: {shown}", keep=shown.startswith("saved"))
            time.sleep(0.002)

    def finish(self, name: str) -> None:
        """Wait for a good end."""
        self.watch(name)
        self.reader.join()
        if self.process.wait() != 0:
            raise Failed(f"{name} failed:\n" + "".join(self.text[-30:]))

    def end(self) -> None:
        """End it, however it stands."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


ALL_TRAININGS: list[Training] = []


def kill_in_a_save(training: Training, store: Path, after: int) -> Path:
    """SIGKILL ``training`` while it writes a save, once step ``after`` is in the store.

    A save has its own folder in the store; the kill lands when that folder has appeared and holds
    bytes of tensors.  Gives the folder.
    """
    training.watch("training", until=lambda: training.safe >= after)
    packs = store / "packs"
    before = set(os.listdir(packs)) if packs.exists() else set()
    while training.process.poll() is None:
        for name in set(os.listdir(packs)) - before:
            written = [p.stat().st_size for p in (packs / name).glob("*.data.pack*")]
            if any(written):
                training.process.send_signal(signal.SIGKILL)
                training.process.wait()
                training.reader.join()
                return packs / name
        time.sleep(0.0002)
    raise Failed("training ended before it could be killed:\n" + "".join(training.text[-30:]))


# --- the castore command ------------------------------------------------------------------------


def run_castore(store: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the ``castore`` command line."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "castore", "-s", str(store), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def show_castore(store: Path, *arguments: str, expect: int = 0) -> str:
    """Run a ``castore`` command, show what it prints, and insist on its exit status."""
    done = run_castore(store, *arguments)
    Out.quote(f"castore -s {store.name} {' '.join(arguments)}", done.stdout + done.stderr)
    if done.returncode != expect:
        raise Failed(f"castore {arguments[0]} exited {done.returncode}, not {expect}")
    return done.stdout


# --- the five parts -----------------------------------------------------------------------------


class Quickstart:
    """The five parts, in order."""

    def __init__(self, out: Path, fast: bool) -> None:
        self.store = out / "runs.castore"
        self.twin_store = out / "twin.castore"
        self.copy = out / "damaged.castore"
        self.model = ["--small"] if fast else []
        self.common = ["--steps", STEPS, "--save-every", SAVE_EVERY, "--threads", 1, *self.model]
        self.killed: Training
        self.twin: Training

    def train_and_kill(self) -> int:
        """Train until a save is under way; kill there.  Gives the step of the head that is left."""
        Out.title(1, "train a transformer on Python's own sources, saving as it goes")
        Out.text(f"""
            Every {SAVE_EVERY} steps the whole training state goes into runs.castore: weights,
            optimizer, schedule, place in the data, random generators. Beside it a twin with the
            same seed trains undisturbed, in a store of its own, to compare with later.""")
        self.twin = Training(
            self.twin_store, *self.common[:2], "--save-every", STEPS, *self.common[4:]
        )
        head: int | None = None
        while True:
            self.killed = Training(self.store, *self.common)
            folder = kill_in_a_save(self.killed, self.store, head or KILL_AFTER)
            if head is None:
                for line in self.killed.text:
                    if line.startswith("new run"):
                        Out.line(f"  {line.strip()}")
                Out.title(2, "kill it with SIGKILL in the middle of a save, and resume")
            head = castore.open(self.store).log("main")[0].step or 0
            if head > STEPS - FURTHER:
                raise Failed("every save was quicker than the kill")
            noted = findings(self.store)
            if noted:  # what, is claimed below
                break
            Out.text(f"The save of step {head} beat the kill, so it exists, whole. Again.")
        written = sum(p.stat().st_size for p in folder.glob("*"))
        Out.text(f"""
            Killed while step {head + SAVE_EVERY} was being saved: {size(written)} written, but no
            entry in the log, so that save does not exist. The bytes it left are debris.""")
        claim(
            f"main's head is step {head}, the last save that was acknowledged",
            head == self.killed.safe,
        )
        show_castore(self.store, "fsck")
        debris = [(f["code"], Path(f["file"]).name) for f in noted]
        claim(
            "fsck finds no damage; all it notes is that save's folder, as debris",
            debris == [("debris", folder.name)],
            f"{debris}",
        )
        return head

    def resume(self, head: int) -> None:
        """Resume from the head; compare with the twin and with the control."""
        control = Training(
            self.store, "--rev", f"main@step={head}", "--forget-rng",
            "--stop-at", head + FURTHER, "--save-every", 0, *self.common[:2], *self.common[4:],
        )  # fmt: skip
        resumed = Training(self.store, *self.common)
        resumed.finish("resumed")
        control.finish("control")
        self.twin.finish("twin")
        claim(f"the run resumed at step {head}", resumed.resumed == head == control.resumed)

        further = sorted(resumed.losses)
        Out.line("\n  loss, every bit of it, as a hexadecimal float:")
        Out.line(
            "  step   undisturbed twin      killed and resumed    control: resumed without RNG"
        )
        for step in [*further[:3], *further[FURTHER - 1 : FURTHER], *further[-1:]]:
            three = [run.losses.get(step, "") for run in (self.twin, resumed, control)]
            Out.line(f"  {step:4}   {three[0]:21} {three[1]:21} {three[2]}")
        Out.line()
        same = [step for step in further if resumed.losses[step] == self.twin.losses[step]]
        claim(
            f"{len(same)} of {len(further)} losses after the kill equal the twin's bit for bit",
            len(same) == len(further) >= FURTHER,
            f"The first that differs is at step {min(set(further) - set(same), default=None)}.",
        )
        first, last = (float.fromhex(self.twin.losses[step]) for step in (1, STEPS))
        claim(f"the model learns: its loss fell from {first:.2f} to {last:.2f}", last < first - 1)
        lost = [step for step in self.killed.losses if step > head]
        claim(
            f"so do the {len(lost)} steps that were lost in the kill and done again",
            all(self.killed.losses[step] == resumed.losses[step] for step in lost),
        )
        ours = castore.open(self.store).resolve("main")
        theirs = castore.open(self.twin_store).resolve("main")
        Out.text("Equal states have equal roots, so two whole runs compare by one digest each:")
        claim(f"step {STEPS} has root {ours.root[:16]}... in both stores", ours.root == theirs.root)
        differs = [s for s, loss in control.losses.items() if loss != self.twin.losses[s]]
        claim(
            f"the control, resumed without the random generators, differs ({len(differs)} of "
            f"{len(control.losses)} losses)",
            len(differs) > len(control.losses) // 2,
        )
        show_castore(self.store, "gc")
        claim("gc removed the debris", findings(self.store) == [])

    def fine_tune(self) -> None:
        """Fine-tune on a second branch; compare what each save reports with what the disk says."""
        Out.title(3, "fine-tune the last block only, on a second branch")
        castore.open(self.store).branch("finetune", "main")
        Out.text("""
            Branch finetune begins at main's head. Frozen weights have the bytes they had, so a
            save finds their chunks in the store and writes only what changed.""")
        grown: dict[int, int] = {}
        level = disk_use(self.store)

        def measure(step: int) -> None:
            nonlocal level
            grown[step], level = disk_use(self.store) - level, disk_use(self.store)

        tuning = Training(
            self.store, "--branch", "finetune", "--fine-tune", "--steps", FINE_TUNE_STEPS,
            "--save-every", SAVE_EVERY, "--threads", 1 if self.model else 2, *self.model,
            on_save=measure,
        )  # fmt: skip
        tuning.finish("fine-tuning")
        saves = [c for c in castore.open(self.store).log("finetune") if c.step in grown][::-1]
        Out.line("\n  save               state      new tensor bytes   grown on disk")
        first = castore.open(self.store).log("main")[0]
        Out.line(
            f"  main     step {first.step:3} {size(first.logical_bytes):>10} "
            f"{size(first.new_bytes):>12}   (dense training: all of it changes)"
        )
        for save in saves:
            share = grown[save.step or 0] / save.logical_bytes
            Out.line(
                f"  finetune step {save.step:3} {size(save.logical_bytes):>10} "
                f"{size(save.new_bytes):>12} {size(grown[save.step or 0]):>18}  ({share:.0%})"
            )
        Out.line()
        expected = FINE_TUNE_STEPS // SAVE_EVERY
        claim(f"{expected} saves stand on branch finetune", len(saves) == len(grown) == expected)
        claim(
            "each cost less than its state, and what it reports as new is what the disk grew by "
            "(metadata aside)",
            all(
                save.new_bytes <= grown[save.step or 0] < min(
                    save.logical_bytes, save.new_bytes * 1.02 + METADATA_ALLOWANCE
                )
                for save in saves
            ),
        )  # fmt: skip

    def look(self) -> None:
        """Show the store through the command line."""
        Out.title(4, "look at the store")
        show_castore(self.store, "log", "--oneline")
        show_castore(self.store, "log", "finetune", "-2")
        show_castore(self.store, "show", "main")
        show_castore(self.store, "info")
        show_castore(self.store, "fsck")
        claim("fsck read every byte and found all sound", True)

    def damage(self, pack: Path) -> None:
        """Flip one bit of a tensor in a copy; fsck and load must name it alike."""
        Out.title(5, "flip one bit in a copy of the store")
        shutil.copytree(self.store, self.copy)
        victim = self.copy / pack.relative_to(self.store)
        # The model comes first, then two moments a weight: so this is in the middle of the model,
        # in a layer that was frozen later. The checkpoints of both branches lean on it.
        offset = victim.stat().st_size // 6
        with victim.open("r+b") as file:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ 0x10]))
        where = victim.relative_to(self.copy).as_posix()
        Out.line(f"  one bit of byte {offset:,} of {where} is flipped in damaged.castore")

        text = show_castore(self.copy, "fsck", expect=1)
        claim("fsck exits 1: there is damage", True)
        head = castore.open(self.copy).resolve("main")
        tuned = castore.open(self.copy).resolve("finetune")
        hit = {finding["checkpoint"] for finding in findings(self.copy)}
        claim("it names every checkpoint that is hit", {head.digest, tuned.digest} <= hit)
        by_fsck = facts(
            finding
            for finding in findings(self.copy)
            if finding["severity"] == "damage" and finding["checkpoint"] == head.digest
        )
        claim(
            "it names the tensor's path and its rows",
            any(path and rows and path in text for path, rows, *_ in by_fsck)
            and head.digest[:12] in text,
            f"It names {by_fsck}.",
        )
        try:
            castore.load(self.copy)
        except castore.CorruptionError as error:
            refusal = error
        else:
            raise Failed("load gave a state with a flipped bit in it")
        Out.quote("python -c 'castore.load(\"damaged.castore\")'", f"CorruptionError: {refusal}")
        by_load = facts(finding.to_dict() for finding in refusal.findings)
        claim(
            "load refuses, with the same tensor, rows, file, offset and digests",
            bool(by_load) and by_load == by_fsck,
            f"fsck: {by_fsck}; load: {by_load}",
        )
        castore.load(self.store)
        claim("the store that was copied loads as before", True)

    def run(self) -> None:
        """All five parts."""
        head = self.train_and_kill()
        self.resume(head)
        # What was written last is the last save of main: its tensors are in the newest folder.
        newest = max(p for p in (self.store / "packs").iterdir() if p.is_dir())
        pack = max(newest.glob("*.data.pack"), key=lambda p: p.stat().st_size)
        self.fine_tune()
        self.look()
        self.damage(pack)


def findings(store: Path) -> list[dict]:
    """What ``castore fsck`` finds, for machines."""
    return json.loads(run_castore(store, "fsck", "--json").stdout)["findings"]


def facts(found: Iterable[dict]) -> set[tuple]:
    """What is damaged: path, rows, file, offset, expected and found digest."""
    return {
        (f["path"], tuple(f["rows"] or ()), f["file"], f["offset"], f["expected"], f["found"])
        for f in found
    }


def fresh_folder(out: Path) -> None:
    """Make ``out``, empty; what an earlier run left there is removed, anything else is not."""
    if out.exists() and not (out / MARKER).exists() and any(out.iterdir()):
        raise Failed(f"{out} is not empty, and this script did not make it: choose another --out")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    (out / MARKER).touch()


def main() -> int:
    """Run the quickstart; 0 if every claim held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--fast", action="store_true", help="a toy model, for CI")
    parser.add_argument("--out", type=Path, default=Path("quickstart-out"), help="where to work")
    args = parser.parse_args()
    try:
        fresh_folder(args.out)
        Quickstart(args.out, args.fast).run()
    except Failed as failure:
        Out.line(f"\nFAILED: {failure}")
        return 1
    finally:
        for training in ALL_TRAININGS:
            training.end()
    Out.line(f"\nAll claims held, in {time.monotonic() - STARTED:.0f} s.")
    used = sum(f.stat().st_size for f in args.out.rglob("*") if f.is_file())
    Out.line(f"The stores stay in {args.out} ({size(used)}) to look around in:")
    Out.line(f"  castore -s {args.out / 'runs.castore'} log")
    return 0


if __name__ == "__main__":
    sys.exit(main())
