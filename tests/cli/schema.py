"""What each line of ``--json`` holds: JSON Schema made from the reports, and a check against it.

docs/json.schema.json is kept, so that a change of it is seen: fields are only ever added.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from castore import reports
from castore.cli.help import HelpPage
from castore.cli.inspect import Resolved

KEPT = Path(__file__).resolve().parents[2] / "docs" / "json.schema.json"

#: Type of a line -> the report it shows, and fields that are added to it.
LINES: dict[str, tuple[type | None, dict[str, Any]]] = {
    "branch": (reports.RefInfo, {}),
    "change": (reports.AppliedChange, {}),
    "checkpoint": (reports.Checkpoint, {"branches": list[str], "tags": list[str]}),
    "completion": (None, {"shell": str, "script": str}),
    "error": (None, {"code": str, "message": str, "exit_code": int}),
    "fsck": (reports.FsckReport, {"ok": bool}),
    "gc": (reports.GcReport, {}),
    "help": (HelpPage, {}),
    "move": (reports.ReflogEntry, {}),
    "object": (reports.StoredObject, {}),
    "ref": (reports.RefInfo, {"ref": str}),
    "revision": (Resolved, {}),
    "store": (reports.StoreInfo, {}),
    "tag": (reports.RefInfo, {}),
    "value": (reports.TreeEntry, {}),
}
#: Fields that some verbs add to a line, and lines that hold more than is told here.
MORE: dict[str, dict[str, Any]] = {"store": {"made": bool}}
OPEN = {"error"}

_PLAIN = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


def _schema(hint: Any, defs: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type; those of reports go to ``defs``."""
    if hint is Any:
        return {}
    if hint is float:
        return {"type": ["number", "string"]}  # "NaN", "Infinity", "-Infinity"
    if hint in _PLAIN:
        return {"type": _PLAIN[hint]}
    if dataclasses.is_dataclass(hint):
        assert isinstance(hint, type)
        if hint.__name__ not in defs:
            defs[hint.__name__] = {}
            defs[hint.__name__] = _object(hint, {}, {}, defs)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return {"anyOf": [_schema(arg, defs) for arg in args]}
    if origin is list or (origin is tuple and args[-1] is ...):
        return {"type": "array", "items": _schema(args[0], defs)}
    if origin is tuple:
        return {
            "type": "array",
            "prefixItems": [_schema(arg, defs) for arg in args],
            "minItems": len(args),
            "maxItems": len(args),
        }
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _schema(args[1], defs)}
    raise AssertionError(f"no schema for {hint}")


def _object(
    report: type | None, more: dict[str, Any], maybe: dict[str, Any], defs: dict[str, Any]
) -> dict[str, Any]:
    hints = typing.get_type_hints(report) if report else {}
    about = _described(report) if report else {}
    properties = {}
    for name, hint in {**hints, **more, **maybe}.items():
        properties[name] = _schema(hint, defs)
        if name in about:
            properties[name] = {"description": about[name], **properties[name]}
    return {
        "type": "object",
        "properties": properties,
        "required": [*hints, *more],
    }


def _described(report: type) -> dict[str, str]:
    """A report's fields as its docstring tells of them."""
    _, _, text = (report.__doc__ or "").partition("Attributes:\n")
    found = re.findall(r"^        (\w+): (.*(?:\n            .*)*)", text, re.MULTILINE)
    return {name: re.sub(r"\s+", " ", about) for name, about in found}


def made() -> dict[str, Any]:
    """The schema of all lines."""
    defs: dict[str, Any] = {}
    for kind, (report, more) in LINES.items():
        line = _object(report, more, MORE.get(kind, {}), defs)
        line["properties"] = {"type": {"const": kind}, **line["properties"]}
        line["required"].insert(0, "type")
        defs[kind] = line
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A line of `castore VERB --json`",
        "description": "Fields are only ever added. Digests are hex, sizes in bytes, times in "
        "nanoseconds since 1970.",
        "oneOf": [{"$ref": f"#/$defs/{kind}"} for kind in LINES],
        "$defs": dict(sorted(defs.items())),
    }


def rendered() -> str:
    """The schema's file."""
    return json.dumps(made(), indent=1) + "\n"


# -- checking -----------------------------------------------------------------------------------

_TYPES: dict[str, Any] = {
    "string": str, "integer": int, "boolean": bool, "null": type(None), "array": list,
    "object": dict, "number": (int, float),
}  # fmt: skip


def check(line: dict[str, Any]) -> None:
    """A line of output is as the kept schema says, with no field that it does not name."""
    whole = json.loads(KEPT.read_text(encoding="utf-8"))
    kind = line["type"]
    assert {"$ref": f"#/$defs/{kind}"} in whole["oneOf"], kind
    _check(line, whole["$defs"][kind], whole["$defs"], kind, extra=kind in OPEN)


def _check(
    value: Any, rule: dict[str, Any], defs: dict[str, Any], at: str, *, extra: bool = False
) -> None:
    if "$ref" in rule:
        return _check(value, defs[rule["$ref"].rpartition("/")[2]], defs, at)
    if "anyOf" in rule:
        wrong = []
        for choice in rule["anyOf"]:
            try:
                return _check(value, choice, defs, at)
            except AssertionError as e:
                wrong.append(str(e))
        raise AssertionError(" and ".join(wrong))
    if "const" in rule:
        assert value == rule["const"], at
    if "type" in rule:
        names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
        fits = any(
            isinstance(value, _TYPES[n]) and (n == "boolean" or not isinstance(value, bool))
            for n in names
        )
        assert fits, f"{at}: {value!r} is no {' or '.join(names)}"
    if isinstance(value, dict):
        assert set(rule.get("required", ())) <= set(value), f"{at} lacks a field: {value}"
        named = rule.get("properties", {})
        rest = rule.get("additionalProperties")
        for name, part in value.items():
            if name in named:
                _check(part, named[name], defs, f"{at}.{name}")
            elif rest is not None:
                _check(part, rest, defs, f"{at}.{name}")
            else:
                assert extra or "properties" not in rule, f"{at}: {name} is not in the schema"
    if isinstance(value, list):
        assert rule.get("minItems", 0) <= len(value) <= rule.get("maxItems", len(value)), at
        for i, part in enumerate(value):
            items = rule.get("prefixItems", ())
            _check(part, items[i] if i < len(items) else rule.get("items", {}), defs, f"{at}[{i}]")
    return None
