"""Vectors, which are arrays of floats: products, distances, norms. Sums are of doubles.

Null where an element is null; two vectors must have the same length.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.ops.functions.alignment import Mask, masked, on_arrays, valid_mask
from penstock.ops.functions.failures import fail
from penstock.ops.functions.lists import Lists, lists_of
from penstock.ops.functions.registry import function
from penstock.plan.exprs import Call

Floats: TypeAlias = npt.NDArray[np.float64]

_OWNER = "VectorFunctionImplUtils"


def _elements(lists: Lists) -> Floats:
    values = lists.elements.fill_null(0.0).to_numpy(zero_copy_only=False)
    return values.astype(np.float64)


def _whole(lists: Lists) -> Mask:
    """Which rows are vectors without a null in them."""
    return lists.valid & ~lists.any(~valid_mask(lists.elements))


def _sums(lists: Lists, values: Floats) -> Floats:
    return np.bincount(lists.rows, weights=values, minlength=len(lists)).astype(np.float64)


def _pair(call: Call, left: pa.Array, right: pa.Array) -> tuple[Lists, Floats, Floats, Mask]:
    """Both vectors of each row, where neither is null, and which rows have no null in them."""
    one, two = lists_of(left), lists_of(right)
    both = one.valid & two.valid
    one, two = one.where(both), two.where(both)
    if (one.lengths != two.lengths).any():
        fail("VECTOR_DIMENSION_MISMATCH", call.function.rpartition(".")[2])
    return one, _elements(one), _elements(two), _whole(one) & _whole(two)


def _shown(values: Floats, there: Mask) -> pa.Array:
    with np.errstate(over="ignore"):
        return masked(values.astype(np.float32), there, pa.float32())


@function(f"{_OWNER}.vectorInnerProduct", sql="vector_inner_product", raises=True)
@on_arrays
def inner_product(call: Call, left: pa.Array, right: pa.Array, name: pa.Array) -> pa.Array:
    lists, a, b, there = _pair(call, left, right)
    with np.errstate(over="ignore", invalid="ignore"):
        return _shown(_sums(lists, a * b), there)


@function(f"{_OWNER}.vectorL2Distance", sql="vector_l2_distance", raises=True)
@on_arrays
def l2_distance(call: Call, left: pa.Array, right: pa.Array, name: pa.Array) -> pa.Array:
    lists, a, b, there = _pair(call, left, right)
    with np.errstate(over="ignore", invalid="ignore"):
        return _shown(np.sqrt(_sums(lists, (a - b) ** 2)), there)


@function(f"{_OWNER}.vectorCosineSimilarity", sql="vector_cosine_similarity", raises=True)
@on_arrays
def cosine_similarity(call: Call, left: pa.Array, right: pa.Array, name: pa.Array) -> pa.Array:
    """Null if one of them is of zeros, or empty."""
    lists, a, b, there = _pair(call, left, right)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        norms = np.sqrt(_sums(lists, a * a) * _sums(lists, b * b))
        return _shown(_sums(lists, a * b) / norms, there & (norms != 0.0))


def _norms(lists: Lists, degrees: npt.NDArray[np.float32], name: str) -> Floats:
    known = (degrees == 1.0) | (degrees == 2.0) | np.isposinf(degrees)
    if not known[lists.valid].all():
        fail("INVALID_VECTOR_NORM_DEGREE", name)
    sizes = np.abs(_elements(lists))
    largest = np.zeros(len(lists))
    with np.errstate(over="ignore", invalid="ignore"):
        straight, square = _sums(lists, sizes), np.sqrt(_sums(lists, sizes * sizes))
        np.maximum.at(largest, lists.rows, sizes)
    return np.select([degrees == 1.0, degrees == 2.0], [straight, square], largest)


@function(f"{_OWNER}.vectorNorm", sql="vector_norm", raises=True)
@on_arrays
def norm(call: Call, vector: pa.Array, degree: pa.Array, name: pa.Array) -> pa.Array:
    there = valid_mask(vector, degree)
    lists = lists_of(vector).where(there)
    norms = _norms(lists, degree.fill_null(0.0).to_numpy(zero_copy_only=False), "vector_norm")
    return _shown(norms, _whole(lists))


@function(f"{_OWNER}.vectorNormalize", sql="vector_normalize", raises=True)
@on_arrays
def normalize(call: Call, vector: pa.Array, degree: pa.Array, name: pa.Array) -> pa.Array:
    """The vector divided by its norm; null if that is zero."""
    there = valid_mask(vector, degree)
    lists = lists_of(vector).where(there)
    norms = _norms(lists, degree.fill_null(0.0).to_numpy(zero_copy_only=False), "vector_normalize")
    kept = lists.where(_whole(lists) & ((norms != 0.0) | (lists.lengths == 0)))
    with np.errstate(over="ignore", invalid="ignore"):
        values = (_elements(kept) / norms[kept.rows]).astype(np.float32)
    return Lists(kept.offsets, pa.array(values, pa.float32()), kept.valid).array(call.type)
