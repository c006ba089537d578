"""Upsampling by products, as on a CPU in use, is the plain one."""

import pytest
import torch

from protoformer.geometry.warps import convex_upsample
from protoformer.models.heads.update import product_upsample


@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 1, 2, 1), (1, 2, 1, 9)], ids=str)
@pytest.mark.parametrize("factor", [8, 2])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_upsampling_by_products_is_the_plain_one(shape, factor, layout):
    generator = torch.Generator().manual_seed(0)
    batch, _, height, width = shape
    field = 10 * torch.randn(shape, generator=generator)
    weights = 3 * torch.randn(batch, 9 * factor**2, height, width, generator=generator).contiguous(memory_format=layout)
    with torch.autocast("cpu", torch.bfloat16):
        fine = product_upsample(field, weights, factor)
    torch.testing.assert_close(fine, convex_upsample(field, weights, factor))
