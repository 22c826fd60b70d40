"""Surfaces as faces with four corners: built from grids, placed in space, turned to the viewer and lit.

A plant is a list of objects (a leaf, a flower, a stem), an object has parts (petals), a part has faces. Objects are
painted from back to front, within them their parts, and within those the faces. This needs no depth buffer, and
overlapping petals stay whole.

Shapes: `F` faces, `N` copies, `R` rows and `C` columns of a grid. Axes: x right, y up, z toward the viewer. Colors are
in [0, 1].
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_AMBIENT = 0.58
_DIFFUSE = 0.50
_GLOSS = 0.16


class Faces(NamedTuple):
    """Faces with the numbers of their parts and objects, from 0.

    Parts are painted in the order of the mean of their `anchors`. This mean is the middle of the part, unless the part
    must be painted before or after its neighbors in every view.
    """

    corners: Floats  # [F, 4, 3]
    colors: Floats  # [F, 3]
    anchors: Floats  # [F, 3]
    parts: Ints
    objects: Ints


def single_part(corners: Floats, colors: Floats) -> Faces:
    """Returns faces [F, 4, 3] in `colors` [F, 3] as one part of one object."""
    zeros = np.zeros(len(corners), np.int64)
    return Faces(corners, colors, corners.mean(axis=1), zeros, zeros)


def grid_faces(points: Floats, colors: Floats) -> Faces:
    """Returns the faces of N grids, each as a part of one object.

    Args:
        points: [N, R, C, 3].
        colors: Broadcasts to [N, R - 1, C - 1, 3].
    """
    near, far = points[:, :-1], points[:, 1:]
    corners = np.stack([near[:, :, :-1], far[:, :, :-1], far[:, :, 1:], near[:, :, 1:]], axis=-2)
    num_grids, rows, columns = corners.shape[:3]
    full = np.broadcast_to(colors, (num_grids, rows, columns, 3)).reshape(-1, 3)
    parts = np.repeat(np.arange(num_grids), rows * columns)
    faces = corners.reshape(-1, 4, 3)
    return Faces(faces, full, faces.mean(axis=1), parts, np.zeros_like(parts))


def join(pieces: list[Faces], *, separate: bool) -> Faces:
    """Joins sets of faces; their objects stay `separate`, or become parts of one object."""
    parts, objects, next_part, next_object = [], [], 0, 0
    for piece in pieces:
        parts.append(piece.parts + next_part)
        objects.append(piece.objects + next_object)
        next_part = int(parts[-1].max()) + 1
        next_object = int(objects[-1].max()) + 1 if separate else 0
    return Faces(
        np.concatenate([piece.corners for piece in pieces]),
        np.concatenate([piece.colors for piece in pieces]),
        np.concatenate([piece.anchors for piece in pieces]),
        np.concatenate(parts),
        np.concatenate(objects),
    )


def place(shape: Faces, frames: Floats, origins: Floats, scales: Floats, tints: Floats) -> Faces:
    """Returns N copies of a shape with one object, each turned by its frame, scaled, moved and tinted.

    Args:
        shape: The object in its local axes.
        frames: [N, 3, 3]; the columns are the directions of the local axes.
        origins: [N, 3].
        scales: [N].
        tints: [N, 3] factors on the colors.
    """
    num_copies, num_faces = len(frames), len(shape.parts)
    matrices = frames.transpose(0, 2, 1) * scales[:, None, None]
    corners = shape.corners.reshape(1, -1, 3) @ matrices + origins[:, None]
    anchors = shape.anchors[None] @ matrices + origins[:, None]
    copies = np.repeat(np.arange(num_copies), num_faces)
    parts = np.tile(shape.parts, num_copies) + copies * (int(shape.parts.max()) + 1)
    colors = (shape.colors[None] * tints[:, None]).reshape(-1, 3)
    return Faces(corners.reshape(-1, 4, 3), colors, anchors.reshape(-1, 3), parts, copies)


def ribbon(path: Floats, width: Floats, color: Floats) -> Faces:
    """Returns a round stem that faces the viewer, as one object: `path` [K, 3], `width` [K], `color` [3]."""
    along = np.gradient(path, axis=0)
    side = np.stack([-along[:, 1], along[:, 0], np.zeros(len(path))], axis=-1)
    side /= np.linalg.norm(side, axis=-1, keepdims=True) + 1e-9
    # Four columns that bulge toward the viewer look round under the light.
    across, bulge = np.array([-1.0, -0.55, 0.55, 1.0]), np.array([0.0, 0.8, 0.8, 0.0])
    points = path[:, None] + (0.5 * width)[:, None, None] * (
        side[:, None] * across[:, None] + bulge[:, None] * np.array([0.0, 0.0, 1.0])
    )
    return grid_faces(points[None], color)


def frames_facing(forward: Floats, spin: Floats) -> Floats:
    """Returns upright frames [N, 3, 3] that face along `forward` [N, 3], then rotated by `spin` [N] radians."""
    z_axis = forward / np.linalg.norm(forward, axis=-1, keepdims=True)
    # Not exactly vertical, so that a flower that faces straight up has a side axis.
    x_axis = np.cross(np.array([0.02, 1.0, -0.05]), z_axis)
    x_axis /= np.linalg.norm(x_axis, axis=-1, keepdims=True)
    y_axis = np.cross(z_axis, x_axis)
    cosine, sine = np.cos(spin)[:, None], np.sin(spin)[:, None]
    return np.stack([cosine * x_axis + sine * y_axis, cosine * y_axis - sine * x_axis, z_axis], axis=-1)


def select(faces: Faces, which: Ints) -> Faces:
    """Returns the faces with the indices `which`, in that order."""
    corners, colors, anchors = faces.corners[which], faces.colors[which], faces.anchors[which]
    return Faces(corners, colors, anchors, faces.parts[which], faces.objects[which])


def turn(faces: Faces, matrix: Floats) -> Faces:
    """Turns faces about the origin by `matrix` [3, 3]."""
    return faces._replace(corners=faces.corners @ matrix.T, anchors=faces.anchors @ matrix.T)


def lit_colors(faces: Faces, light: Floats) -> Floats:
    """Returns the colors [F, 3] under a light from direction `light` [3].

    Both sides are lit, because petals and leaves are translucent; undersides are paler, and all faces slightly glossy.
    """
    first, second = faces.corners[:, 2] - faces.corners[:, 0], faces.corners[:, 3] - faces.corners[:, 1]
    normal = np.cross(first, second)
    normal /= np.linalg.norm(normal, axis=-1, keepdims=True) + 1e-12
    away = normal[:, 2] < 0
    normal[away] *= -1
    facing = np.maximum(normal @ light, 0.0)
    halfway = light + np.array([0.0, 0.0, 1.0])
    gloss = np.maximum(normal @ (halfway / np.linalg.norm(halfway)), 0.0) ** 14
    pale = np.where(away[:, None], 0.82 * faces.colors + 0.12 * faces.colors.mean(axis=-1, keepdims=True), faces.colors)
    lit = pale * (_AMBIENT + _DIFFUSE * facing)[:, None] + _GLOSS * gloss[:, None] * (0.35 + 0.65 * pale)
    return np.asarray(np.clip(lit, 0.0, 1.0))


def painting_order(faces: Faces) -> Ints:
    """Returns the indices [F] of the faces in the order of painting."""
    depth = faces.corners[:, :, 2].mean(axis=1)
    by_part, by_object = _mean_by(faces.anchors[:, 2], faces.parts), _mean_by(depth, faces.objects)
    return np.asarray(np.lexsort((depth, faces.parts, by_part, faces.objects, by_object)))


def _mean_by(values: Floats, groups: Ints) -> Floats:
    means = np.bincount(groups, values) / np.maximum(np.bincount(groups), 1)
    return np.asarray(means[groups])


def paint(canvas: Image.Image, outlines_px: Floats, colors: Floats) -> None:
    """Fills polygons, in order, on an RGBA canvas.

    Args:
        canvas: Changed in place.
        outlines_px: [F, K, 2] corners, right and down from the top left.
        colors: [F, 3].
    """
    # Rounded, because the last bits of sine and cosine differ between processors and could move a pixel.
    corners = np.round(outlines_px.reshape(len(outlines_px), -1), 2).tolist()
    fills = np.round(colors * 255).astype(np.int64).tolist()
    draw = ImageDraw.Draw(canvas)
    for corner, (red, green, blue) in zip(corners, fills, strict=True):
        draw.polygon(corner, fill=(red, green, blue, 255))
