"""What a forward reads out of blocks in one buffer is what stands there, layer by layer."""

import pytest
import torch

from lumen.cache import BlockStore, DecodeBatch, LayeredCache, PackedCache, Segment
from lumen.parts import Latent

from ..tiny import relative_error, tiny_llama
from .kinds import kivi, quantized


@pytest.mark.parametrize(
    "make", [BlockStore.for_model, quantized("int8"), quantized("int4"), kivi("kivi"), kivi("kivi-2")]
)
@pytest.mark.parametrize(("rows", "width", "length"), [(1, 1, 1), (1, 4, 11), (3, 2, 5), (5, 3, 9)])
def test_gathered_blocks_are_those_of_the_tables(make, rows, width, length):
    """Against PyTorch's own indexing of what was written, blocks shared between rows among them."""
    store = make(tiny_llama(), 20, 3)
    torch.manual_seed(0)
    k, v = torch.randn(3, 60, 3, 8), torch.randn(3, 60, 3, 8)
    for layer in range(3):
        store.write(layer, torch.arange(60), k[layer], v[layer])
    tables = torch.randint(20, (rows, width))
    slots = (tables[:, :, None] * 3 + torch.arange(3)).flatten(1)[:, :length]
    gather = store.gather(tables, length)
    for layer in (0, 2, 1, 0):
        for got, written in zip(gather(layer), (k, v), strict=True):
            want = written[layer][slots].transpose(1, 2)
            assert got.shape == (rows, 3, length, 8)
            assert relative_error(got, want) <= store.traits.tolerance / 3


def test_all_layers_share_one_buffer():
    store = BlockStore.for_model(tiny_llama(), 4, 2)
    gather = store.gather(torch.tensor([[2, 0]]), 3)
    assert (
        len({x.data_ptr() for layer in range(3) for x in gather(layer)}) == 2
    )  # keys, and values behind them
    assert len({x.untyped_storage().data_ptr() for x in gather(0)}) == 1


@pytest.mark.parametrize("cache", ["paged", "packed", "decode batch"])
def test_values_without_a_width_of_their_own_are_read_too(cache):
    """Latent keys hold the values (MLA): the plane of values is empty, and the layer reads them out of the keys."""
    config = tiny_llama().config.with_(latent=Latent(8, 4))
    store, segment = BlockStore(config, 4, 2), Segment([2, 0], 2, 1)
    k, v = torch.randn(1, 1, 1, 12), torch.zeros(1, 1, 1, 0)
    pos = torch.tensor([[2 if cache != "paged" else 0]])
    if cache == "paged":
        kept = store.rows(1)
    elif cache == "packed":
        kept = PackedCache(store, [segment])
    else:
        kept = DecodeBatch(store, 1, 2)
        kept.load([segment])
    seen = []
    kept.begin(pos)
    kept.attend(
        0, torch.randn(1, 9, 1, 12), k, v, pos, expand=lambda k, v: seen.append((k, v)) or (k, k[..., :8])
    )
    (keys, values), at = seen[0], int(pos)
    assert values.shape == (*keys.shape[:3], 0) and torch.equal(keys[:, :, at : at + 1], k)


def test_layers_in_two_stores_are_one_packed_forward():
    """A layered cache lays tokens out as its parts do."""
    model = tiny_llama(torch.float64)
    stores = [BlockStore.for_model(model, 8, 2) for _ in range(2)]
    ids, segments = [5, 9, 2, 44, 3], [Segment([3, 1], 0, 3), Segment([2], 0, 2)]
    parts = [PackedCache(store, segments) for store in stores]
    cache = LayeredCache([(parts[0], 0), (parts[1], 0), (parts[0], 1)])
    got = model(torch.tensor([ids]), parts[0].pos, cache)[0]
    want = torch.cat([model(torch.tensor([ids[:3]]))[0], model(torch.tensor([ids[3:]]))[0]])
    assert relative_error(got, want) < 1e-12
