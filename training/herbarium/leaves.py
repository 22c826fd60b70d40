"""A leaf: blade outline, teeth or lobes, veins, and the leaflets of compound leaves.

A blade extends along +x and y, and its upper side faces +z. It is a function from a square (`along` 0..1, `across`
-1..1) to space, which gives both the faces and the veins, so veins are always on the blade. Broad leaves (cordate,
orbicular, palmate) are fans: for them `along` runs around the margin, and `across` from the stalk outward.
"""

import numpy as np

from training.herbarium.geometry import Faces, Floats, grid_faces, join, place
from training.herbarium.traits import LeafTraits

_FANS = ("cordate", "orbicular", "palmate")
_FAN_ANGLE = 2.75  # radians on each side of the tip; the stalk is in the gap
# Exponents (a, b) of the half-width u^a (1-u)^b: a larger a narrows the base, a larger b lengthens the tip.
_PROFILES = {
    "linear": (0.3, 0.6),
    "lanceolate": (0.6, 1.1),
    "ovate": (0.45, 0.95),
    "obovate": (1.2, 0.45),
    "elliptic": (0.7, 0.7),
    "deltoid": (0.16, 1.0),
}
_SMALLEST_WITH_SIDE_VEINS_PX = 60  # on the canvas; in smaller blades they are thinner than a pixel
_STALK = 0.22  # length of the leaf stalk as a fraction of the blade


def leaf_color(leaf: LeafTraits) -> Floats:
    """Returns the green [3] of the upper side."""
    yellowish, bluish = np.array([0.50, 0.61, 0.22]), np.array([0.27, 0.45, 0.27])
    return np.asarray(yellowish + (bluish - yellowish) * leaf.hue)


def leaf_shape(leaf: LeafTraits, detail_px: float) -> Faces:
    """Returns one leaf of length about 1, simple or compound, as one object; `detail_px` is its canvas length."""
    if leaf.composition == "simple":
        blade = _blade_faces(leaf, detail_px)
        return join([_stalk(leaf, _STALK), _moved(blade, _STALK)], separate=False)
    return _compound(leaf, detail_px)


def _compound(leaf: LeafTraits, detail_px: float) -> Faces:
    origins, angles, size = _leaflets(leaf)
    blade = _blade_faces(leaf, detail_px * size)
    cosine, sine, zero, one = np.cos(angles), np.sin(angles), np.zeros_like(angles), np.ones_like(angles)
    frames = np.stack([cosine, -sine, zero, sine, cosine, zero, zero, zero, one], axis=-1).reshape(-1, 3, 3)
    leaflets = place(blade, frames, origins, np.full(len(angles), size), np.ones((len(angles), 3)))
    rachis = _stalk(leaf, float(origins[:, 0].max()) + 0.02)
    return join([rachis, leaflets._replace(objects=np.zeros_like(leaflets.objects))], separate=False)


def _leaflets(leaf: LeafTraits) -> tuple[Floats, Floats, float]:
    """Returns origins [N, 3], directions [N] in radians, and size of the leaflets of a compound leaf."""
    if leaf.composition == "pinnate":
        pairs = leaf.num_leaflets // 2
        along = np.append(np.repeat(np.linspace(0.28, 0.78, pairs), 2), 0.82)
        angles = np.append(np.tile([1.05, -1.05], pairs), 0.0)
        return np.stack([along, 0 * along, 0 * along], axis=-1), angles, min(0.42, 1.5 / pairs**0.8 * 0.32)
    count, spread, size = (3, 1.25, 0.62) if leaf.composition == "trifoliate" else (leaf.num_leaflets, 1.7, 0.62)
    angles = np.linspace(-spread, spread, count)
    angles = angles[np.argsort(-np.abs(angles), kind="stable")]
    return np.tile([0.36, 0.0, 0.0], (count, 1)), angles, size


def _moved(faces: Faces, distance: float) -> Faces:
    offset = np.array([distance, 0.0, 0.0])
    return faces._replace(corners=faces.corners + offset, anchors=faces.anchors + offset)


def _stalk(leaf: LeafTraits, length: float) -> Faces:
    along = np.linspace(0.0, length, 4)[:, None]
    across = np.array([-0.011, 0.011])
    points = np.stack(np.broadcast_arrays(along, across, 0.0 * along), axis=-1)[None]
    return grid_faces(points, leaf_color(leaf) * 0.85)


def _blade_faces(leaf: LeafTraits, detail_px: float) -> Faces:
    rows, half_columns = _resolution(leaf, detail_px)
    fan = leaf.shape in _FANS
    along = np.linspace(0.0, 1.0, rows)
    across = np.linspace(0.0, 1.0, half_columns + 1) if fan else np.linspace(-1.0, 1.0, 2 * half_columns + 1)
    grid_along, grid_across = np.meshgrid(along, across, indexing="ij")
    points = _surface(leaf, grid_along, grid_across)
    middle = 0.5 * (np.abs(across[1:]) + np.abs(across[:-1]))
    # Slightly paler toward the rim and the tip, where the blade is thin.
    paler = 0.93 + 0.13 * middle[None, :, None] + 0.06 * along[1:, None, None]
    colors = leaf_color(leaf) * paler
    both = join([grid_faces(points[None], colors[None]), _veins(leaf, detail_px)], separate=False)
    # Veins are in the same part as the blade; otherwise they could be painted below it.
    return both._replace(parts=np.zeros_like(both.parts))


def _resolution(leaf: LeafTraits, detail_px: float) -> tuple[int, int]:
    """Returns rows, and columns on each half: enough for the teeth, and about 9 canvas pixels per face."""
    steps = {"serrate": 2, "dentate": 2, "crenate": 4, "lobed": 6, "undulate": 4}.get(leaf.margin, 0) * leaf.num_teeth
    if detail_px < 8 * leaf.num_teeth and leaf.margin != "lobed":
        steps = 0  # the teeth are too small to be visible
    if leaf.shape == "palmate":
        steps = max(steps, 28)
    if leaf.shape in _FANS:
        steps = max(steps, 20)
    rows = max(steps, int(np.clip(detail_px / 12, 5, 24)))
    if steps and rows > steps:
        rows = steps * round(rows / steps)
    return rows + 1, int(np.clip(detail_px / 70, 1, 4))


def _surface(leaf: LeafTraits, along: Floats, across: Floats) -> Floats:
    """Returns points [..., 3] of the blade at `along` and `across`."""
    flat_x, flat_y = _fan(leaf, along, across) if leaf.shape in _FANS else _strap(leaf, along, across)
    bend = max(leaf.arch, 1e-3)
    # Bent with constant curvature, and folded along the midrib, so that the halves are lit differently.
    height = 0.28 * np.abs(flat_y)
    if leaf.margin == "undulate":
        height = height + 0.05 * np.sin(2 * np.pi * leaf.num_teeth * 0.7 * along) * np.abs(across) ** 2
    turned = flat_x * bend
    radius = 1.0 / bend + height
    return np.stack([np.sin(turned) * radius, flat_y, np.cos(turned) * radius - 1.0 / bend], axis=-1)


def _strap(leaf: LeafTraits, along: Floats, across: Floats) -> tuple[Floats, Floats]:
    rise, fall = _PROFILES[leaf.shape]
    peak = rise / (rise + fall)
    width = along**rise * (1 - along) ** fall / (peak**rise * (1 - peak) ** fall)
    rim, shift = _margin(leaf, along)
    # Side veins and teeth point forward, so the rows of the grid slant too.
    slant = 0.16 * np.abs(across) * (1 - along) * along**0.5
    flat_y = across * 0.5 * leaf.width * width * (1 + (rim - 1) * np.abs(across) ** 2)
    return along + slant + shift * np.abs(across), flat_y


def _fan(leaf: LeafTraits, along: Floats, across: Floats) -> tuple[Floats, Floats]:
    angle = (2 * along - 1) * _FAN_ANGLE
    rim, _ = _margin(leaf, along)
    radius = across * _fan_radius(leaf, angle) * (1 + (rim - 1) * across)
    return 0.35 + radius * np.cos(angle), radius * np.sin(angle) * min(leaf.width, 1.2)


def _fan_radius(leaf: LeafTraits, angle: Floats) -> Floats:
    if leaf.shape == "cordate":
        return np.asarray(0.40 + 0.09 * np.cos(angle) + 0.20 * np.exp(-np.abs(angle) / 0.35))
    if leaf.shape == "orbicular":
        return np.asarray(0.46 + 0.05 * np.cos(angle))
    lobes = np.abs(np.cos(1.5 * angle)) ** 0.75  # five lobes, one of them at the tip
    return np.asarray((0.42 + 0.14 * np.cos(angle)) * (0.42 + 0.78 * lobes))


def _margin(leaf: LeafTraits, along: Floats) -> tuple[Floats, Floats]:
    """Returns the factor on the half-width, and the forward shift, of the rim at `along`."""
    phase = along * leaf.num_teeth
    depth = 0.5 if leaf.shape in _FANS else 1.0
    still = np.zeros_like(along)
    if leaf.margin == "serrate":
        tooth = 1 - np.abs(2 * (phase % 1) - 1)
        return 1 + 0.30 * depth * (tooth - 0.5), 0.45 / leaf.num_teeth * tooth * (1 - along)
    if leaf.margin == "dentate":
        return 1 + 0.36 * depth * (0.5 - np.abs(2 * (phase % 1) - 1)), still
    if leaf.margin == "crenate":
        return 1 + 0.24 * depth * (np.abs(np.sin(np.pi * phase)) - 0.6), still
    if leaf.margin == "lobed":
        return 1 + depth * (0.95 * np.abs(np.sin(np.pi * phase)) ** 0.8 - 0.62), still
    return 1 + still, still


def _veins(leaf: LeafTraits, detail_px: float) -> Faces:
    starts, ends = _vein_lines(leaf)
    if detail_px < _SMALLEST_WITH_SIDE_VEINS_PX:
        starts, ends = starts[:1], ends[:1]
    steps = np.linspace(0.0, 1.0, 4)
    along = starts[:, :1] + (ends - starts)[:, :1] * steps
    across = starts[:, 1:] + (ends - starts)[:, 1:] * steps
    center = _surface(leaf, along, across) + np.array([0.0, 0.0, 0.006])
    ahead = np.gradient(center, axis=1)
    side = np.stack([-ahead[..., 1], ahead[..., 0], np.zeros_like(along)], axis=-1)
    side /= np.linalg.norm(side, axis=-1, keepdims=True) + 1e-9
    thickness = np.full(len(starts), 0.007)
    thickness[0] = 0.013
    taper = thickness[:, None, None] * (1.1 - steps[:, None])
    points = np.stack([center - side * taper, center + side * taper], axis=2)
    return grid_faces(points, leaf_color(leaf) * 1.28 + 0.04)


def _vein_lines(leaf: LeafTraits) -> tuple[Floats, Floats]:
    """Returns the ends [V, 2] of the veins in (along, across); the first is the midrib."""
    if leaf.shape in _FANS:
        targets = np.array([0.5, 0.31, 0.69, 0.12, 0.88])
        return np.stack([targets, 0.02 + 0 * targets], axis=-1), np.stack([targets, 0.9 + 0 * targets], axis=-1)
    if leaf.venation == "parallel":
        offsets = np.array([0.0, -0.5, 0.5])
        return np.stack([0.02 + 0 * offsets, offsets], axis=-1), np.stack([0.97 + 0 * offsets, offsets], axis=-1)
    where = np.repeat(np.linspace(0.14, 0.74, 5), 2)
    sides = np.tile([0.88, -0.88], 5)
    starts = np.concatenate([[[0.0, 0.0]], np.stack([where, 0 * where], axis=-1)])
    ends = np.concatenate([[[0.97, 0.0]], np.stack([np.minimum(where + 0.07, 0.93), sides], axis=-1)])
    return starts, ends
