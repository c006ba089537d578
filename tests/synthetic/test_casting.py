"""Rays hit unit shapes at the analytic intersection points."""

import dataclasses
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from protoformer.geometry.warps import pixel_grid, rotation
from protoformer.synthetic.families import FAMILIES
from protoformer.synthetic.generator import SyntheticScenes
from protoformer.synthetic.renderer import Renderer, View
from protoformer.synthetic.scene import KINDS, Frame, Scenes
from protoformer.synthetic.surface import _blocked, _nearest, in_shadow, nearest, ripple, unripple
from protoformer.synthetic.texture_bank import TextureBank

Compose = Callable[..., Scenes]
SEVERAL_TILES = (80, 150)


def along(renderer: Renderer, *rays: tuple[float, float], time: float = 0.0) -> Tensor:
    """Depths on rays (x, y, 1) of the first scene."""
    frame = renderer.scenes.frame(time)
    positions = frame.project(*torch.tensor([[(x, y, 1.0) for x, y in rays]]).double().unbind(-1)).float()
    depth, _ = nearest(frame, renderer.shapes, positions)
    return depth[0]


@pytest.fixture
def cast(compose: Compose, bank: TextureBank) -> Callable[..., Tensor]:
    """Depths on rays through a scene of one thing."""

    def casted(thing: dict[str, object], *rays: tuple[float, float], time: float = 0.0) -> Tensor:
        return along(Renderer(compose(thing), bank), *rays, time=time)

    return casted


def expect(depth: Tensor, *wanted: float, atol: float = 1e-5) -> None:
    torch.testing.assert_close(depth, torch.tensor(wanted, dtype=torch.float32), atol=atol, rtol=0)


def test_a_ball_is_met_at_its_front_and_up_to_its_limb(cast: Callable[..., Tensor]) -> None:
    limb = 1 / math.sqrt(24)  # tangent of the angle whose sine is 1 / 5
    ball = {"kind": "ball", "position": (0.0, 0.0, 5.0)}
    expect(cast(ball, (0, 0), (1.001 * limb, 0), (0, -1.001 * limb)), 4, math.inf, math.inf)
    expect(cast(ball, (0.99999 * limb, 0), (0, -0.99999 * limb)), 4.8, 4.8, atol=0.01)
    x = 0.1  # x^2 t^2 + (t - 5)^2 = 1
    expect(cast(ball, (x, 0)), (5 - math.sqrt(25 - 24 * (1 + x * x))) / (1 + x * x))


def test_an_ellipsoid_has_three_radii_along_its_own_axes(cast: Callable[..., Tensor]) -> None:
    quarter = torch.tensor([0.0, 0.0, math.pi / 2], dtype=torch.float64)
    ball = {"kind": "ball", "position": (0.0, 0.0, 100.0), "extent": (10.0, 20.0, 0.5)}
    expect(cast(ball, (0, 0), (0.11, 0), (0, 0.11), (0.09, 0)).isfinite().float(), 1, 0, 1, 1)
    expect(cast({**ball, "base": rotation(quarter)}, (0, 0), (0.11, 0), (0, 0.11)).isfinite().float(), 1, 1, 0)
    expect(cast(ball, (0, 0)), 99.5)


def test_a_far_sky_is_met_from_within(cast: Callable[..., Tensor]) -> None:
    sky = {"kind": "sky", "position": (0.0, 0.0, 0.0), "extent": (2000.0, 2000.0, 2000.0)}
    expect(cast(sky, (0, 0), (1, 0), (-0.3, 0.4)), 2000, 2000 / math.sqrt(2), 2000 / math.sqrt(1.25), atol=1e-2)


def test_a_box_is_met_at_its_nearest_face(cast: Callable[..., Tensor]) -> None:
    box = {"kind": "box", "position": (2.0, 0.0, 5.0)}
    # The front face reaches from x = 1 to 3 at z = 4; before it, the left face is seen at x = 1.
    expect(cast(box, (0.5, 0), (0.249, 0), (0.2, 0), (0.16, 0), (0.5, 0.251)), 4, 1 / 0.249, 5, math.inf, math.inf)


def test_a_room_is_met_at_its_far_wall(cast: Callable[..., Tensor]) -> None:
    room = {"kind": "room", "position": (0.0, 0.5, 0.0), "extent": (2.0, 1.5, 6.0)}
    rays = [(0.0, 0.0), (1.0, 0.0), (-0.4, 0.1), (0.1, 0.7), (0.1, -0.7)]

    def wall(x: float, y: float) -> float:
        return min(6, 2 / abs(x) if x else math.inf, (2 if y > 0 else 1) / abs(y) if y else math.inf)

    expect(cast(room, *rays), *(wall(x, y) for x, y in rays))


def test_a_rectangle_ends_at_its_edges(cast: Callable[..., Tensor]) -> None:
    patch = {"kind": "rectangle", "position": (0.0, 0.0, 5.0), "extent": (1.0, 0.5, 1.0)}
    expect(cast(patch, (0.199, 0), (0.201, 0), (0, -0.099), (0, -0.101)), 5, math.inf, 5, math.inf)


def test_a_tilted_plane_has_the_depth_of_its_equation(cast: Callable[..., Tensor]) -> None:
    turned = rotation(torch.tensor([0.4, -0.7, 0.2], dtype=torch.float64))
    patch = {"kind": "rectangle", "position": (0.3, -0.2, 6.0), "extent": (40.0, 40.0, 1.0), "base": turned}
    normal = turned[:, 2]
    rays = [(0.0, 0.0), (0.4, 0.3), (-0.5, 0.2), (0.1, -0.4)]
    across = normal @ torch.tensor([0.3, -0.2, 6.0]).double()
    wanted = [float(across / (normal @ torch.tensor([x, y, 1.0]).double())) for x, y in rays]
    torch.testing.assert_close(cast(patch, *rays), torch.tensor(wanted), rtol=1e-5, atol=0)


def test_a_blob_reaches_as_far_as_its_outline(compose: Compose, bank: TextureBank) -> None:
    outline = [0.5, 0.1, -0.08, 0.06, 0.05, -0.04, 0.07]
    scenes = compose({"kind": "blob", "position": (0.0, 0.0, 10.0)})
    rough = torch.tensor(outline, dtype=torch.float64).view(1, 1, 7)
    renderer = Renderer(
        dataclasses.replace(scenes, primitives=dataclasses.replace(scenes.primitives, outline=rough)), bank
    )
    inner, outer = [], []
    for angle in torch.linspace(-3.0, 3.0, 25).tolist():
        waves = [f(n * angle) for n in (2, 3, 5) for f in (math.cos, math.sin)]
        radius = outline[0] + sum(a * b for a, b in zip(outline[1:], waves, strict=True))
        for share, rays in ((0.999, inner), (1.001, outer)):
            rays.append((share * radius / 10 * math.cos(angle), share * radius / 10 * math.sin(angle)))
    assert torch.allclose(along(renderer, *inner), torch.tensor(10.0), atol=1e-5)
    assert (along(renderer, *outer) == math.inf).all()


def test_a_ripple_moves_the_outline_with_the_material(cast: Callable[..., Tensor]) -> None:
    # x is sheared by 0.2 sin(pi / 2 t): at t = 0 not at all, at t = 1 the material at x = 0 is at -0.2.
    waves = [[0.2, 0.0, 0.0, math.pi / 2], [0.0, 0.0, 0.0, 0.0]]
    blob = {"kind": "blob", "position": (0.0, 0.0, 10.0), "roughness": 0.0, "ripple": waves}
    expect(cast(blob, (-0.101, 0), (-0.099, 0), (0.099, 0)), math.inf, 10, 10)
    expect(cast(blob, (-0.121, 0), (-0.119, 0), (0.081, 0), (0.079, 0), time=1.0), math.inf, 10, math.inf, 10)


def test_a_cutout_is_there_where_its_silhouette_is(compose: Compose, bank: TextureBank) -> None:
    renderer = Renderer(compose({"kind": "cutout", "position": (0.0, 0.0, 10.0), "extent": (2.0, 3.0, 1.0)}), bank)
    x, y = torch.rand(2, 400, generator=torch.Generator().manual_seed(0)) * 2.2 - 1.1
    depth = along(renderer, *zip((0.2 * x).tolist(), (0.3 * y).tolist(), strict=True))
    texture = renderer.scenes.primitives.texture[0].expand(400)
    solid = bank.covers(texture, 0.5 * x + 0.5, 0.5 * y + 0.5)
    assert solid.any() and not solid.all()
    assert ((depth < math.inf) == solid).float().mean() > 0.99  # but for rays at the very outline
    assert torch.allclose(depth[depth < math.inf], torch.tensor(10.0))


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_behind_the_camera_or_not_there_is_not_seen(kind: str, cast: Callable[..., Tensor]) -> None:
    rays = [(0.0, 0.0), (0.02, 0.01), (-0.01, 0.02)]
    assert (cast({"kind": kind, "position": (0.0, 0.0, -5.0)}, *rays) == math.inf).all()
    assert (cast({"kind": kind, "position": (0.0, 0.0, 5.0), "alive": False}, *rays) == math.inf).all()
    if kind != "cutout":  # its middle may be empty
        assert (cast({"kind": kind, "position": (0.0, 0.0, 5.0)}, *rays) < math.inf).all()


def test_the_nearest_of_many_is_seen(compose: Compose, bank: TextureBank) -> None:
    things = [
        {"kind": kind, "position": (0.0, 0.0, depth), "roughness": 0.0}
        for kind, depth in (("rectangle", 9.0), ("blob", 7.0), ("box", 6.0), ("ball", 8.5))
    ]
    frame = (scenes := compose(*things)).frame(0.0)
    middle = frame.project(*torch.tensor([[[0.0, 0.01], [0.0, 0.01], [1.0, 1.0]]]).unbind(1))
    depth, index = nearest(frame, Renderer(scenes, bank).shapes, middle)
    expect(depth[0], 5, 5)
    assert index.tolist() == [[2, 2]]  # sorted by kind, the box is the third


def test_rays_along_faces_leave_no_holes(compose: Compose, bank: TextureBank) -> None:
    left, right = ({"kind": "box", "position": (x, 0.0, 5.0)} for x in (-1.0, 1.0))
    depth = along(Renderer(compose(left, right), bank), (0, 0), (0, 0.1), (0.0, -0.2), (0.1, 0), (-0.1, 0))
    expect(depth, 4, 4, 4, 4, 4)
    within = {"kind": "room", "position": (0.0, 0.0, 0.0), "extent": (2.0, 2.0, 3.0)}
    expect(along(Renderer(compose(within), bank), (0, 0), (0, 0.5), (0.5, 0)), 3, 3, 3)


@pytest.mark.parametrize("kind", ["rectangle", "blob", "cutout"])
@pytest.mark.parametrize("height", [0.0, 1.0])
def test_a_flat_thing_seen_along_its_plane_is_not_seen(kind: str, height: float, cast: Callable[..., Tensor]) -> None:
    across = torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]], dtype=torch.float64)
    patch = {"kind": kind, "position": (0.0, height, 5.0), "base": across}
    assert (cast(patch, (0, 0), (0.1, 0)) == math.inf).all()


def test_a_ripple_is_undone_exactly() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = 2 * torch.rand(2, 1000, generator=generator) - 1
    waves = torch.rand(6, 1000, generator=generator) * torch.tensor([0.3, 7, 6, 0.3, 7, 6])[:, None]
    back = unripple(*ripple(x, y, waves), waves)
    torch.testing.assert_close(torch.stack(back), torch.stack((x, y)), atol=1e-6, rtol=0)
    assert (torch.stack(ripple(x, y, waves)) - torch.stack((x, y))).abs().max() > 0.2


def some_views(family: str, bank: TextureBank) -> tuple[Renderer, View]:
    renderer = SyntheticScenes(family, 5, SEVERAL_TILES, bank=bank).renderer(range(3))
    return renderer, renderer.view(0.7)


def same_things(frame: Frame, renderer: Renderer, positions: Tensor) -> None:
    """Tile by tile the same is met as with every primitive against every ray."""
    depth, index = nearest(frame, renderer.shapes, positions)
    plain_depth, plain_index = _nearest(frame.table, frame.alive, renderer.shapes, frame.counts, *frame.rays(positions))
    assert torch.equal(depth, plain_depth)
    assert torch.equal(index[depth < math.inf], plain_index[depth < math.inf])


@pytest.mark.parametrize("family", FAMILIES)
def test_leaving_out_what_a_tile_cannot_see_changes_nothing(family: str, bank: TextureBank) -> None:
    renderer, view = some_views(family, bank)
    height, width = SEVERAL_TILES
    pixels = pixel_grid(height, width).flatten(1).expand(3, -1, -1)
    same_things(view.frame, renderer, pixels)
    beyond = 3 * pixels[..., ::7] - torch.tensor([width, height]).view(1, 2, 1)  # far outside of the image too
    same_things(view.frame, renderer, beyond)
    alone = dataclasses.replace(view.frame, alive=view.frame.alive & (renderer.materials.instance == 1))
    same_things(alone, renderer, pixels)


@pytest.mark.parametrize("family", FAMILIES)
def test_leaving_out_what_cannot_shadow_a_tile_changes_nothing(family: str, bank: TextureBank) -> None:
    renderer, view = some_views(family, bank)
    frame, hit = view.frame, view.hits
    shadow = in_shadow(frame, renderer.shapes, hit.points, hit.index)
    plain = _blocked(frame.table, frame.casts, frame.sun, renderer.shapes, frame.counts, hit.points, hit.index)
    assert torch.equal(shadow, plain)
    assert shadow.any() and not shadow.all()


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_seen_lies_on_its_thing(family: str, bank: TextureBank) -> None:
    _, view = some_views(family, bank)
    x, y, z = view.hits.local
    ends = torch.tensor(view.frame.counts).cumsum(0)
    kind = torch.bucketize(view.hits.index, ends, right=True)
    flat, solid = kind < KINDS.index("box"), (kind == KINDS.index("box")) | (kind == KINDS.index("room"))
    largest = torch.maximum(torch.maximum(x.abs(), y.abs()), z.abs())
    assert z[flat].abs().max() < 1e-4
    if solid.any():
        assert (largest[solid] - 1).abs().max() < 1e-3
    rest = ~flat & ~solid
    if rest.any():
        assert ((x * x + y * y + z * z).sqrt()[rest] - 1).abs().max() < 1e-3


def slopes(view: View) -> tuple[Tensor, Tensor]:
    """Normals from the depth of neighboring pixels, B x 3 x H-2 x W-2, and where all of them show one face."""
    points = view.map(view.hits.points).double()
    right = points[..., 1:-1, 2:] - points[..., 1:-1, :-2]
    down = points[..., 2:, 1:-1] - points[..., :-2, 1:-1]
    normal = torch.linalg.cross(right, down, dim=1)
    normal = -normal / normal.norm(dim=1, keepdim=True)
    face = view.map((6 * view.hits.index + view.hits.face)[None]).float()
    same = torch.nn.functional.max_pool2d(face, 3, 1) == -torch.nn.functional.max_pool2d(-face, 3, 1)
    return normal, same


def test_normals_are_those_of_the_depth_map(compose: Compose, bank: TextureBank) -> None:
    turned = rotation(torch.tensor([0.4, 0.7, -0.3], dtype=torch.float64))
    things = [
        {"kind": "room", "position": (0.0, 0.0, 0.0), "extent": (4.0, 3.0, 9.0)},
        {"kind": "ball", "position": (-1.5, 0.0, 5.0), "extent": (1.0, 1.5, 0.8), "base": turned},
        {"kind": "box", "position": (1.5, 0.5, 5.0), "extent": (0.8, 1.0, 1.2), "base": turned},
        {"kind": "rectangle", "position": (0.0, -1.5, 5.0), "extent": (1.0, 1.0, 1.0), "base": turned},
    ]
    renderer = Renderer(compose(*things, size=(240, 320), focal=(300.0, 300.0)), bank)
    view = renderer.view(0.0)
    normal, same = slopes(view)
    seen = view.normals[..., 1:-1, 1:-1].double()
    gap = (seen - normal).norm(dim=1, keepdim=True)
    ball = view.primitive[..., 1:-1, 1:-1] == 2
    assert gap[same & ~ball].max() < 1e-3
    rays = torch.cat((view.hits.ray, torch.ones_like(view.hits.ray[:1])))
    facing = (view.map(rays / rays.norm(dim=0)) * view.normals).sum(dim=1, keepdim=True)[..., 1:-1, 1:-1]
    steep = facing > -0.5  # near the limb depth is too curved to estimate from neighbors
    assert gap[same & ball & ~steep].max() < 0.02
    assert (same & ball & ~steep).sum() > 2000


@pytest.mark.parametrize("family", FAMILIES)
def test_normals_are_unit_and_face_the_camera(family: str, bank: TextureBank) -> None:
    _, view = some_views(family, bank)
    torch.testing.assert_close(view.normals.norm(dim=1), torch.ones(3, *SEVERAL_TILES))
    rays = view.map(torch.cat((view.hits.ray, torch.ones_like(view.hits.ray[:1]))))
    assert ((view.normals * rays).sum(dim=1) <= 0).all()
    normal, same = slopes(view)
    plane = view.primitive < sum(view.frame.counts[:3])
    gap = (view.normals[..., 1:-1, 1:-1] - normal).norm(dim=1, keepdim=True)
    near = (view.depth < 50)[..., 1:-1, 1:-1]
    assert gap[same & plane[..., 1:-1, 1:-1] & near].max() < 5e-3
