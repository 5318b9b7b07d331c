"""Weights in few bits before they lie in panels, whether a file stores them so or they were rounded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """R rows of K inputs; a weight is scale * (code - zero) + minimum.

    Scales and minima belong to groups of `group_size` inputs. Where `groups_per_block` is more than one they are
    products of a block's number and the group's own small integer.
    """

    bits: int
    """4 or 8."""
    zero: int
    group_size: int
    groups_per_block: int
    codes: npt.NDArray[np.uint8]
    """[R, K]"""
    scale: npt.NDArray[np.float16]
    """[R, blocks]"""
    minimum: npt.NDArray[np.float16] | None = None
    """[R, blocks]"""
    group_scale: npt.NDArray[np.int8] | None = None
    """[R, groups]"""
    group_minimum: npt.NDArray[np.int8] | None = None
    """[R, groups]"""
    rotated: bool = False
    """They are those of the weight's rotated rows (rotation.py)."""
    inputs_rotated: bool = False
    """Rotated before they came, as what they are multiplied by is."""
