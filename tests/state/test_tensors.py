"""Tensors: views, strides, aliases, lazy bits (T9), every dtype (T11), shapes and flags."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from castore.errors import BadState
from castore.state import describe
from tests.same import assert_same, raw
from tests.state.harness import Memory, round_trip
from tests.strategies import DTYPES, tensor_of, tensors


def stored_bytes(state: Any) -> int:
    memory = Memory()
    memory.save(state)
    return sum(map(len, memory.chunks.values()))


# -- T9: views, strides, aliases, lazy bits -------------------------------------------------------


def t9_state() -> dict[str, torch.Tensor]:
    big = torch.randn(1_000_000)
    embed = torch.randn(50, 8)
    c = torch.tensor([1 + 2j, 3 + 4j])
    return {
        "slice": big[:10],
        "overlapping a": big[100:200],
        "overlapping b": big[150:250],
        "embed": embed,
        "lm_head": embed,
        "zeros a": torch.zeros(300),
        "zeros b": torch.zeros(300),
        "expanded": torch.arange(12).view(1, 12).expand(2, -1),
        "transposed": torch.randn(30, 40).t(),
        "channels last": torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last),
        "conj": c.conj(),
        "neg": torch._neg_view(torch.tensor([1.0, 3.0])),
        "c": c,
        "real": c.real,
        "imag": c.imag,
    }


def test_T9_values_are_logical_and_exact() -> None:
    state = t9_state()
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert loaded["conj"].tolist() == [1 - 2j, 3 - 4j]
    assert loaded["neg"].tolist() == [-1.0, -3.0]
    assert not loaded["conj"].is_conj()


def test_T9_A01_a_slice_costs_its_own_bytes() -> None:
    big = torch.randn(1_000_000)
    description = describe({"slice": big[:10]}, 4096)
    assert description.logical_bytes == 40
    assert stored_bytes([big[1000:2000]]) == 4000
    whole = torch.arange(1000 * 300).view(1000, 300)
    assert sum(stored_bytes([piece]) for piece in whole.chunk(10)) == whole.nbytes


def test_T9_A02_what_is_tied_comes_back_tied() -> None:
    embed = torch.randn(50, 8)
    fused = torch.randn(12, 4)
    q, k, v = fused.split(4)
    state = {"embed": embed, "lm_head": embed, "third": embed.view(50, 8), "qkv": fused}
    state |= {"q": q, "k": k, "v": v, "small": torch.ones(1)}
    state["small again"] = state["small"]
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert loaded["embed"] is loaded["lm_head"] is loaded["third"]
    assert loaded["small"] is loaded["small again"]
    # Other views of one memory are values of their own.
    loaded["qkv"].zero_()
    assert_same(loaded["q"], q)


def test_T9_equal_but_separate_tensors_stay_separate() -> None:
    loaded = round_trip({"a": torch.zeros(3000), "b": torch.zeros(3000)})
    loaded["a"].add_(1)
    assert loaded["b"].sum() == 0


def test_T9_A06_an_expanded_tensor_comes_back_writable() -> None:
    loaded = round_trip(torch.eye(3).expand(4, 3, 3))
    loaded[0, 0, 0] = 7
    assert loaded[1, 0, 0] == 1


def test_T9_A08_a_tensor_and_its_parts() -> None:
    a = torch.randn(500, dtype=torch.complex64)
    state = [a, a.real, a.imag, a.conj(), a.conj().imag]
    assert_same(state, round_trip(state))


def test_A10_loaded_tensors_are_private_and_writable() -> None:
    memory = Memory()
    state = {"w": torch.randn(5000), "small": torch.randn(3), "empty": torch.empty(0)}
    root = memory.save(state)
    first, second = memory.load(root), memory.load(root)
    for tensor in first.values():
        tensor.add_(1)
        tensor.resize_(9000)  # storages are torch's own
    assert_same(second, state)
    assert_same(memory.load(root), state)
    assert memory.save(state) == root


def test_ties_keep_their_flags() -> None:
    weight = torch.nn.Parameter(torch.randn(400))
    state = [weight, weight.data, weight.detach(), weight, weight.data]
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert loaded[0] is loaded[3]
    assert loaded[1] is loaded[2] is loaded[4]
    with torch.no_grad():
        loaded[0].zero_()
    assert loaded[1].sum() == 0


def test_ties_are_numbered_by_first_appearance() -> None:
    a, b = torch.randn(100), torch.randn(100)
    same = describe([a, b, b, a], 4096)
    other = describe([a, a.clone(), b, a], 4096)
    assert [value.after for value in same.data] == [[b"\x00"], [b"\x01"]]
    assert [value.after for value in other.data] == [[b"\x00"], [b"\xc0"], [b"\xc0"]]
    assert same.tensors == 4
    assert same.logical_bytes == 800


def test_ties_do_not_depend_on_addresses() -> None:
    def make() -> list[Any]:
        a, b = torch.arange(100.0), torch.ones(3)
        return [b, a, [a, b], {"x": a}, a[:50]]

    kept = [make() for _ in range(3)]
    assert len({Memory().save(state) for state in kept}) == 1


def test_two_names_of_one_tied_tensor_in_a_subtree() -> None:
    weight = torch.randn(2000)
    memory = Memory()
    root = memory.save({"a": {"x": weight, "y": weight}, "b": weight})
    loaded = memory.load(root)
    assert loaded["a"]["x"] is loaded["a"]["y"] is loaded["b"]
    assert len(memory.plan(root).reads) == 1


# -- T11: low-bit and unusual dtypes --------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(DTYPES))
def test_T11_every_byte_value_of_every_dtype(name: str) -> None:
    data = bytes(range(256)) * 32
    tensor = tensor_of(DTYPES[name], (len(data) // DTYPES[name].itemsize,), data)
    rows = tensor.reshape(16, -1)
    empty = tensor[:0]
    state = {"flat": tensor, "short": tensor[:4], "transposed": rows.t(), "step": rows[:, ::2]}
    state |= {"empty": empty, "scalar": tensor[3], "columns": rows[:, 1:3]}
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert raw(loaded["flat"]) == data
    assert loaded["scalar"].shape == ()


def test_T11_float4_shapes() -> None:
    packed = tensor_of(torch.float4_e2m1fn_x2, (2, 4), bytes(range(8)))
    empty = tensor_of(torch.float4_e2m1fn_x2, (0, 4), b"")
    assert_same([packed, empty], round_trip([packed, empty]))


def test_T11_bool_with_raw_byte_two() -> None:
    odd = tensor_of(torch.bool, (4, 2), bytes([0, 1, 2, 255, 3, 0, 1, 7]))
    state = [odd, odd.t(), odd[:, 1]]
    loaded = round_trip(state)
    assert raw(loaded[0]) == bytes([0, 1, 2, 255, 3, 0, 1, 7])
    assert raw(loaded[1]) == bytes([0, 2, 3, 1, 1, 255, 0, 7])


@pytest.mark.parametrize("lazy", [torch.complex32, torch.complex64, torch.complex128])
def test_T11_A19_complex_with_nan_and_inf_parts(lazy: torch.dtype) -> None:
    half = {torch.complex32: "<e", torch.complex64: "<f", torch.complex128: "<d"}[lazy]
    parts = [float("nan"), float("inf"), -0.0, 1.5, float("-inf"), 2.0]
    tensor = tensor_of(lazy, (3,), b"".join(struct.pack(half, x) for x in parts))
    assert_same([tensor, tensor.conj()], round_trip([tensor, tensor.conj()]))


def test_T11_nan_payloads_through_strides() -> None:
    codes = torch.tensor([0x7FA00001, -0x3EDCBB, 0x7F800001, 1], dtype=torch.int32)
    tensor = codes.view(torch.float32).view(2, 2)
    assert raw(round_trip(tensor.t())) == codes.view(2, 2).t().contiguous().numpy().tobytes()


# -- shapes and flags -----------------------------------------------------------------------------


def test_A14_empty_tensors_keep_shape_and_dtype_and_are_no_aliases() -> None:
    big = torch.randn(100, 100)
    state = [torch.empty(0), torch.empty(2, 0), torch.empty(0, 3, 4, dtype=torch.int8)]
    state += [torch.tensor([]), torch.tensor([]), big[:0], big[:, :0]]
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert len(set(map(id, loaded))) == len(loaded)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_A15_scalars_keep_their_shape(dtype: torch.dtype) -> None:
    state = [torch.tensor(1, dtype=dtype), torch.tensor([1], dtype=dtype)]
    assert_same(state, round_trip(state))


def test_A34_adams_step() -> None:
    state = [{"step": torch.tensor(3.0)}, {"step": 3}, {"step": torch.tensor([3.0])}]
    assert_same(state, round_trip(state))


def test_A42_parameters_and_flags() -> None:
    state = [
        torch.nn.Parameter(torch.randn(3)),
        torch.nn.Parameter(torch.randn(3), requires_grad=False),
        torch.nn.Parameter(torch.empty(0)),
        torch.nn.Parameter(torch.arange(3), requires_grad=False),
        torch.randn(3, requires_grad=True),
        torch.randn(3, requires_grad=True) * 2,
        torch.randn(999, requires_grad=True).t(),
    ]
    loaded = round_trip(state)
    assert_same(state, loaded)
    assert all(tensor.is_leaf for tensor in loaded)
    buffer = round_trip(torch.nn.Buffer(torch.ones(3)))
    assert type(buffer) is torch.Tensor


def test_a_default_device_is_nothing_to_us() -> None:
    state = {"w": torch.randn(2000), "s": torch.tensor(1.5), "t": torch.randn(40, 50).t()}
    state["generator"] = torch.Generator().manual_seed(3)  # type: ignore[assignment]
    with torch.device("meta"):
        loaded = round_trip(state)
    assert_same(state, loaded)


def test_inference_mode_tensors() -> None:
    with torch.inference_mode():
        state = {"w": torch.randn(2000), "t": torch.randn(40, 50).t()}
    assert_same(state, round_trip(state))
    plain = {"w": torch.randn(2000), "t": torch.randn(40, 50, requires_grad=True).t()}
    with torch.inference_mode():
        memory = Memory()
        root = memory.save(plain)
    assert_same(plain, memory.load(root))


@given(tensors(), st.sampled_from([4096, 8192]))
def test_any_tensor_at_any_chunk_size(tensor: torch.Tensor, chunk_size: int) -> None:
    assert_same(tensor, round_trip(tensor, chunk_size))


@pytest.mark.parametrize(
    "shape", [(3, 5000), (1, 20_000), (1025, 3), (7, 1023), (2, 3, 4099), (300, 1100)]
)
def test_long_rows_short_rows_and_their_chunks(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    views = [tensor, tensor.transpose(0, -1), tensor[..., 1:], torch._neg_view(tensor)]
    views.append(torch.randn(shape, dtype=torch.complex128).conj())
    assert_same(views, round_trip(views))


# -- tensors without memory -----------------------------------------------------------------------


def test_a_freed_storage_is_refused_not_read() -> None:
    freed, shrunk = torch.randn(1000), torch.randn(1000)
    part = freed[500:]
    strided = shrunk.view(10, 100).t()[5:]
    state = {"freed": freed, "part": part, "shrunk": shrunk[:900], "strided": strided, "ok": 1}
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(100)
    with pytest.raises(BadState) as caught:
        describe(state, 4096)
    assert caught.value.paths == ("freed", "part", "shrunk", "strided")
    assert "freed or shrunk" in str(caught.value)


def test_a_zero_tensor_is_refused() -> None:
    with pytest.raises(BadState, match=r"w: a zero tensor .* save tensor.clone\(\)"):
        describe({"w": torch._efficientzerotensor(3)}, 4096)


def test_tensors_of_a_transform_are_refused() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(BadState, match=r"w: a tensor out of reach"):
            describe({"w": x}, 4096)
        return x.sum()

    torch.func.vmap(inside)(torch.ones(3, 4))
