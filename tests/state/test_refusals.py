"""What cannot be kept exactly is refused before anything is hashed, by key path and type."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import threading
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from datetime import datetime, timedelta, tzinfo
from types import MappingProxyType, SimpleNamespace
from typing import Any

import pytest
import torch

from castore.errors import BadState
from castore.state import describe


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


class Dict(dict):  # type: ignore[type-arg]
    pass


class Odd:
    def __repr__(self) -> str:
        raise AssertionError("never asked")


class Zone(tzinfo):
    def utcoffset(self, _when: datetime | None) -> timedelta:
        return timedelta(0)


@dataclasses.dataclass
class Record:
    x: int = 1


Point = namedtuple("Point", "x y")


class Wrapper(torch.Tensor):
    pass


def with_attribute() -> Counter[str]:
    counter = Counter("a")
    counter.note = "x"  # type: ignore[attr-defined]
    return counter


def local() -> None:
    pass


CASES: dict[str, tuple[Any, str, str]] = {
    "enum": (Color.RED, "test_refusals.Color", "value.name"),
    "int enum": (Level.LOW, "test_refusals.Level", "value.name"),
    "namedtuple": (Point(1, 2), "test_refusals.Point", "_asdict()"),
    "dataclass": (Record(), "test_refusals.Record", "dataclasses.asdict"),
    "namespace": (argparse.Namespace(a=1), "argparse.Namespace", "vars(value)"),
    "simple namespace": (SimpleNamespace(a=1), "SimpleNamespace", "vars(value)"),
    "str subclass": (Text("x"), "test_refusals.Text", "str(value)"),
    "dict subclass": (Dict(), "test_refusals.Dict", "dict(value)"),
    "bytearray": (bytearray(b"x"), "bytearray", "bytes(value)"),
    "memoryview": (memoryview(b"x"), "memoryview", "bytes(value)"),
    "range": (range(3), "range", "list(value)"),
    "deque": (deque([1]), "collections.deque", "list(value)"),
    "proxy": (MappingProxyType({}), "mappingproxy", "dict(value)"),
    "lambda": (lambda: 1, "function", "code is never kept"),
    "function": (local, "function", "code is never kept"),
    "method": ([].append, "builtin_function_or_method", "code is never kept"),
    "bound method": (Odd().__repr__, "method", "code is never kept"),
    "class": (Odd, "type", "code is never kept"),
    "partial": (functools.partial(local), "functools.partial", "code is never kept"),
    "module": (enum, "module", "code is never kept"),
    "iterator": (iter([1]), "list_iterator", "list(value)"),
    "generator": ((x for x in ()), "generator", "iterator"),
    "lock": (threading.Lock(), "lock", "plain parts"),
    "ellipsis": (..., "ellipsis", "plain parts"),
    "object": (Odd(), "test_refusals.Odd", "plain parts"),
    "zone": (datetime(2026, 1, 1, tzinfo=Zone()), "test_refusals.Zone", "zoneinfo"),
    "module object": (torch.nn.Linear(1, 1), "torch.nn.modules.linear.Linear", "state_dict()"),
    "optimizer": (torch.optim.SGD([torch.ones(1)]), "torch.optim.sgd.SGD", "state_dict()"),
    "factory": (defaultdict(lambda: 1), "defaultdict", "dict(value)"),
    "factory function": (defaultdict(local), "defaultdict", "dict(value)"),
    "attribute": (with_attribute(), "Counter with attributes of its own (note)", "_metadata"),
    "tensor in a set": ({torch.ones(1)}, "torch.Tensor in a set", "use a list"),
    "tensor subclass": (torch.ones(1).as_subclass(Wrapper), "test_refusals.Wrapper", "plain"),
    "uninitialized": (torch.nn.UninitializedParameter(), "UninitializedParameter", "run the model"),
    "meta": (torch.empty(2, device="meta"), "meta device", "materialize"),
    "empty meta": (torch.empty(0, device="meta"), "meta device", "materialize"),
    "sparse": (torch.eye(2).to_sparse(), "layout torch.sparse_coo", "to_dense()"),
    "mkldnn": (torch.ones(2).to_mkldnn(), "layout torch._mkldnn", "to_dense()"),
}


@pytest.mark.parametrize("name", CASES)
def test_refused_with_path_type_and_advice(name: str) -> None:
    value, what, advice = CASES[name]
    path = "run/~(0.5)/1"
    with pytest.raises(BadState) as caught:
        describe({"fine": 1, "run": {0.5: ["fine", value, 2]}}, 4096)
    error = caught.value
    at = path + "/0" if name == "tensor in a set" else path
    assert (error.path, error.paths) == (at, (at,))
    assert what in error.message
    assert advice in error.message
    assert error.message.startswith(f"the state cannot be kept exactly, nothing was written: {at}:")


@pytest.mark.parametrize("name", CASES)
def test_refused_at_the_root(name: str) -> None:
    with pytest.raises(BadState) as caught:
        describe(CASES[name][0], 4096)
    assert caught.value.path == ("0" if name == "tensor in a set" else "")


@pytest.mark.filterwarnings("ignore:torch.quantize:UserWarning")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
def test_A20_A25_A29_quantized_nested_and_sparse_tensors_are_refused() -> None:
    weight = torch.randn(2, 3)
    scales, zeros = torch.tensor([0.1, 0.2]), torch.tensor([0, 1])
    state = {
        "per channel": torch.quantize_per_channel(weight, scales, zeros, 1 - 1, torch.qint8),
        "per tensor": torch.quantize_per_tensor(weight, 0.1, 3, torch.quint8),
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "jagged": torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
        "uncoalesced": torch.sparse_coo_tensor(
            torch.tensor([[0, 0]]), torch.tensor([1.0, 2.0]), (3,), check_invariants=False
        ),
    }
    with pytest.raises(BadState) as caught:
        describe(state, 4096)
    assert caught.value.paths == tuple(state)
    for word in ("qint8", "quint8", "a nested tensor", "NestedTensor", "sparse_coo"):
        assert word in caught.value.message


def test_A27_all_meta_tensors_are_listed_at_once() -> None:
    with torch.device("meta"):
        state = {"a": torch.empty(2), "b": [torch.ones(2, device="cpu"), torch.empty(1)]}
    with pytest.raises(BadState) as caught:
        describe(state, 4096)
    assert caught.value.paths == ("a", "b/1")
    assert caught.value.path == "a"


def test_a_long_list_of_offenders_is_cut_in_the_text_only() -> None:
    state = {f"w{i}": torch.empty(2, device="meta") for i in range(5000)}
    with pytest.raises(BadState) as caught:
        describe(state, 4096)
    assert len(caught.value.paths) == 5000
    assert "and 4980 more" in caught.value.message
    assert len(caught.value.message.splitlines()) == 22


def test_A40_a_schedulers_lambda() -> None:
    state = {"scheduler": {"scale_fn": lambda x: x, "lr_lambdas": [None]}}
    with pytest.raises(BadState) as caught:
        describe(state, 4096)
    assert caught.value.path == "scheduler/scale_fn"


@pytest.mark.parametrize(
    ("key", "path"),
    [
        (Color.RED, "m/~(tests.state.test_refusals.Color)"),
        (frozenset({1}), "m/~(frozenset)"),
        ((1, Odd()), "m/~(tuple)"),
        (Level.LOW, "m/~(tests.state.test_refusals.Level)"),
        (torch.nn.Parameter(torch.ones(1)), "m/~(torch.nn.parameter.Parameter)"),
        (local, "m/~(function)"),
        ("x" * 70_000, "m/~('" + "x" * 76 + "...)"),
    ],
)
def test_refused_keys(key: Any, path: str) -> None:
    with pytest.raises(BadState, match="key") as caught:
        describe({"m": {"fine": 1, key: 2}}, 4096)
    assert caught.value.path == path


def test_tuples_as_keys_nest_32_deep() -> None:
    key: Any = 1
    for _ in range(32):
        key = (key,)
    describe({key: 1}, 4096)
    with pytest.raises(BadState, match="nested too deep"):
        describe({(key,): 1}, 4096)


def test_T10_cycles_are_refused() -> None:
    loop: list[Any] = [1, {"a": []}]
    loop[1]["a"].append(loop)
    with pytest.raises(BadState, match="contains itself") as caught:
        describe({"x": loop}, 4096)
    assert caught.value.path == "x/1/a/0"
    own: dict[str, Any] = {}
    own["self"] = own
    with pytest.raises(BadState, match="contains itself") as caught:
        describe(own, 4096)
    assert caught.value.path == "self"
    ordered: OrderedDict[str, Any] = OrderedDict(a=1)
    ordered._metadata = ordered  # type: ignore[attr-defined]
    with pytest.raises(BadState, match="contains itself") as caught:
        describe([ordered], 4096)
    assert caught.value.path == "0/~(_metadata)"


def test_a_container_reachable_twice_is_no_cycle() -> None:
    shared = [1, 2]
    state = {"a": shared, "b": [shared, shared]}
    description = describe(state, 4096)
    assert description.tensors == 0


def test_other_attributes_of_an_ordered_dict() -> None:
    ordered: OrderedDict[str, int] = OrderedDict(a=1)
    ordered._metadata = {}  # type: ignore[attr-defined]
    ordered.other = 3  # type: ignore[attr-defined]
    with pytest.raises(BadState, match=r"OrderedDict with attributes of its own .*other") as caught:
        describe([ordered], 4096)
    assert caught.value.path == "0"


def test_nothing_is_touched_before_all_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    from castore.state.tensor_source import TensorSource

    def never(*_: Any) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(TensorSource, "fill", never)
    monkeypatch.setattr(TensorSource, "view", never)
    with pytest.raises(BadState):
        describe({"a": torch.ones(1000), "b": object()}, 4096)
