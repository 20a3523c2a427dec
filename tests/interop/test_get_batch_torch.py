"""Batches as PyTorch tensors."""

import numpy as np
import pytest

from preprocess.sampling.get_batch import get_batch

torch = pytest.importorskip("torch", reason="needs the extra `torch`")


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_tensors_are_what_the_arrays_are(device: object) -> None:
    data = np.arange(500, dtype=np.uint16)
    arrays = get_batch(data, 6, 9, rng=np.random.default_rng(2))
    tensors = get_batch(data, 6, 9, device, rng=np.random.default_rng(2))
    for array, tensor in zip(arrays, tensors, strict=True):
        assert tensor.dtype == torch.int64
        assert tensor.device.type == "cpu"
        assert tensor.is_contiguous()
        assert not tensor.is_pinned()
        assert np.array_equal(tensor.numpy(), array)


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="has CUDA: this is what is said where there is none"
)
def test_device_that_is_not_there_gives_the_error_of_torch() -> None:
    with pytest.raises((AssertionError, RuntimeError)) as wanted:
        torch.zeros(1).to("cuda")
    with pytest.raises(type(wanted.value)) as found:
        get_batch(np.arange(99), 1, 1, "cuda")
    assert str(found.value) == str(wanted.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="has no CUDA device to put a batch on")
def test_cuda() -> None:
    inputs, targets = get_batch(np.arange(99), 4, 5, "cuda")
    assert inputs.is_cuda
    assert torch.equal(targets, inputs + 1)


def test_the_memory_of_a_tensor_is_not_given_to_another_batch() -> None:
    data = np.arange(500)
    held = [part.view(-1)[2:] for _ in range(6) for part in get_batch(data, 64, 150, "cpu")]
    seen = [part.clone() for part in held]
    for _ in range(20):
        for part in get_batch(data, 64, 150, "cpu"):
            part.fill_(-1)
    assert all(torch.equal(part, before) for part, before in zip(held, seen, strict=True))


def test_tensors_of_the_caller_are_filled() -> None:
    tokens = np.arange(1000, dtype=np.uint16)
    expected = get_batch(tokens, 3, 5, rng=np.random.default_rng(1))
    out = torch.zeros((3, 5), dtype=torch.int64), torch.zeros((3, 5), dtype=torch.int32)
    assert get_batch(tokens, 3, 5, rng=np.random.default_rng(1), out=out) is out
    assert all((a.numpy() == b).all() for a, b in zip(out, expected, strict=True))
