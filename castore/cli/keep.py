"""Verbs that say which checkpoints stay: ``window``, ``drop``, ``pin``, ``unpin``."""

from __future__ import annotations

import click

from castore.cli import output
from castore.cli.common import Verb, json_option, no_path, open_found, store_option
from castore.errors import UsageError
from castore.reports import WindowReport

__all__ = ["drop", "pin", "unpin", "window"]


# -- window -------------------------------------------------------------------------------------


@click.command(
    "window",
    cls=Verb,
    short_help="Say which checkpoints of a branch stay; let the others go.",
    help="""\
Say which checkpoints of a branch stay, and let the others go.

With options: sets the branch's policy in the place of the old one, and
applies it, now and in every later save on the branch. Each rule adds to what
the others keep. The newest checkpoint always stays, and so does what a tag or
a pin holds. What is not verified never pushes out what is: where too few
checkpoints are verified, as many as must be are read back first. Adding,
letting go and freeing are one log entry; only packs that no live checkpoint
needs are removed.

With a branch and no option: shows its policy and what that would do now, with
a reason for every checkpoint. With neither: the policy of every branch.
Without a policy nothing is ever let go.

  castore window main --keep-last 5 --keep-every 1000 -n
  castore window main --keep-last 5 --keep-every 1000
  castore window main --keep-best eval/loss:min:2 --keep-within 2d
  castore window main
  castore window main --off""",
)
@click.argument("branch", required=False)
@click.option(
    "--keep-last", type=int, metavar="N", help="The newest N verified, and all newer ones (3)."
)
@click.option("--keep-every", type=int, metavar="K", help="Those whose step is a multiple of K.")
@click.option(
    "--keep-best",
    multiple=True,
    metavar="METRIC[:min|max][:N]",
    help="The best N (1) by a number in their meta; more than one may be given.",
)
@click.option(
    "--keep-within", metavar="TIME", help="Those at most 2d, 36h, 1w older than the newest."
)
@click.option("--off", is_flag=True, help="Clear the branch's policy.")
@click.option("--below-three", is_flag=True, help="Allow --keep-last 1 and 2.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done, packs too; do not.")
@json_option
@store_option
def window(
    branch: str | None,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: tuple[str, ...],
    keep_within: str | None,
    off: bool,
    below_three: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Run ``castore window``."""
    from castore.cli.progress import progress

    rules = (keep_last, keep_every, keep_best or None, keep_within)
    asks = off or any(rule is not None for rule in rules)
    if branch is None and not asks and not dry_run:
        _policies(as_json)
        return
    with (
        open_found(readonly=dry_run or not asks) as store,
        progress("reading back", lambda: None) as advance,
    ):
        report = store.window(
            "main" if branch is None else branch,
            keep_last=keep_last,
            keep_every=keep_every,
            keep_best=keep_best or None,
            keep_within=keep_within,
            off=off,
            below_three=below_three,
            dry_run=dry_run,
            progress=advance,
        )
    if as_json:
        output.emit("window", report.to_dict())
    else:
        _tell(report, packs=dry_run)


def _policies(as_json: bool) -> None:
    """The policy of every branch."""
    from castore.cli.render import print_table

    with open_found() as store:
        windows = store.info().windows
        policies = {name: windows.get(name) for name in [*store.branches(), *windows]}
    if as_json:
        for name, policy in policies.items():
            output.emit("policy", {"branch": name, "policy": policy})
        return
    print_table(
        ("branch", "policy"),
        [(output.clean(n), output.clean(p or "none")) for n, p in policies.items()],
    )


def _tell(report: WindowReport, *, packs: bool) -> None:
    from castore.cli.render import count, print_table, short, size

    if report.items:
        print_table(
            ("action", "checkpoint", "step", "reason"),
            [
                (
                    item.action,
                    short(item.checkpoint),
                    "" if item.step is None else str(item.step),
                    output.clean(item.reason),
                )
                for item in report.items
            ],
            right=[2],
        )
    if packs:
        print_table(
            ("action", "size", "pack", "reason"),
            [(p.action, size(p.size), output.clean(p.path), p.reason) for p in report.packs],
            right=[1],
        )
    for detail in report.damage:
        output.note(f"damaged: {output.clean(detail)}")
    would = "would " if report.dry_run else ""
    if report.read_back:
        output.say(f"{would}read back {count(len(report.read_back), 'checkpoint')} first")
    policy = output.clean(report.policy or "none; nothing is let go")
    gone = "nothing"
    if report.let_go:
        gone = f"{count(len(report.let_go), 'checkpoint')}, {size(report.freed_bytes)}"
    output.say(f"{output.clean(report.branch)}: {policy}")
    if report.policy is not None:
        output.say(f"{would}let go {gone}" if would else f"let go {gone}")
    if not report.items and report.policy is not None:
        output.note(f"{output.clean(report.branch)} has no checkpoint yet")


# -- drop ---------------------------------------------------------------------------------------


@click.command(
    "drop",
    cls=Verb,
    short_help="Let one checkpoint go, and free what only it needs.",
    help="""\
Let checkpoints go, and remove the packs that only they need.

Each leaves the lists of all branches. Never the newest of a branch; one that
a tag or a pin holds is refused, and the refusal names them. There is no
undo. Costs one log entry each; no pack is read.

  castore drop main~3
  castore drop main@step=1000""",
)
@click.argument("revs", nargs=-1, required=True, metavar="REV...")
@json_option
@store_option
def drop(revs: tuple[str, ...], as_json: bool) -> None:
    """Run ``castore drop``."""
    from castore.cli.render import short, size

    with open_found(readonly=False) as store:
        # Of several all are resolved before one goes: main~2 means what it means now.
        named = [no_path(rev, "drop") for rev in revs]
        if len(named) > 1:
            named = [store.log(rev, limit=1)[0].digest for rev in named]
        for rev in dict.fromkeys(named):
            report = store.drop(rev)
            if as_json:
                output.emit("drop", report.to_dict())
                continue
            step = "" if report.step is None else f" (step {report.step})"
            freed = size(report.freed_bytes)
            output.say(f"Dropped checkpoint {short(report.checkpoint)}{step}; {freed} freed")


# -- pins ---------------------------------------------------------------------------------------


@click.command(
    "pin",
    cls=Verb,
    short_help="List pins; keep a checkpoint until it is unpinned.",
    help="""\
List pins; or keep a checkpoint from being let go until `castore unpin`.

No window, drop or gc lets a pinned checkpoint go. A program that reads for
long takes a pin that ends with its process (`with store.pin(REV)`); the one
made here stays. A name is made up where you give none.

Costs one log entry; no pack is read.

  castore pin               list: name, checkpoint, step, owner
  castore pin main~2
  castore pin main~2 paper  by a name of your own""",
)
@click.argument("words", nargs=-1, metavar="[REV [NAME]]")
@json_option
@store_option
def pin(words: tuple[str, ...], as_json: bool) -> None:
    """Run ``castore pin``."""
    from castore.cli.render import short

    if not words:
        _list_pins(as_json)
        return
    if len(words) > 2:
        raise UsageError(f"castore pin takes a revision and a name, not {len(words)} words")
    rev, name = words if len(words) == 2 else (words[0], None)
    with open_found(readonly=False) as store:
        change = store.pin(no_path(rev, "pin"), name, lasting=True).change
    if as_json:
        output.emit("change", change.to_dict())
        return
    called = output.clean(change.name)
    output.say(f"Pinned {short(change.new or '')} as {called}; `castore unpin {called}` undoes it")


def _list_pins(as_json: bool) -> None:
    from castore.cli.render import print_table, short

    with open_found() as store:
        pins = store.pins()
    if as_json:
        for found in pins:
            output.emit("pin", found.to_dict())
        return
    state = {True: "alive", False: "dead: gc gives it up", None: "perhaps alive"}
    print_table(
        ("pin", "checkpoint", "step", "owner"),
        [
            (
                output.clean(found.name),
                short(found.digest),
                "" if found.step is None else str(found.step),
                f"{output.clean(found.owner)} ({state[found.alive]})"
                if found.owner
                else "none: stays until unpinned",
            )
            for found in pins
        ],
        right=[2],
    )


@click.command(
    "unpin",
    cls=Verb,
    short_help="Give pins up.",
    help="""\
Give pins up, whoever made them. Lets no checkpoint go by itself.

  castore unpin paper""",
)
@click.argument("names", nargs=-1, required=True, metavar="NAME...")
@json_option
@store_option
def unpin(names: tuple[str, ...], as_json: bool) -> None:
    """Run ``castore unpin``."""
    from castore.cli.render import short

    with open_found(readonly=False) as store:
        for name in names:
            change = store.unpin(name)
            if as_json:
                output.emit("change", change.to_dict())
            else:
                called = output.clean(change.name)
                output.say(f"Unpinned {called} (was {short(change.old or '')})")
