"""Columns of a cache that hold tokens. transformers also counts padding; a session stores only tokens."""

import dataclasses
import threading
import weakref

import torch

from ._mask import columns_of, refused


@dataclasses.dataclass(frozen=True)
class Columns:
    """The columns of a batch, with a mask of tokens. The cost of a step does not depend on the number of
    earlier columns: `padded` is None without padding, and otherwise all layers share one tensor."""

    tokens: tuple[int, ...]  # number of tokens of each sequence
    count: int = 0
    padded: torch.Tensor | None = None  # [B,count] bool on the host: true for tokens. None: no padding

    @staticmethod
    def of(real):
        """Returns Columns of `real`, [B,count] bool on the host, which is true for tokens."""
        tokens, count = tuple(real.sum(1).tolist()), real.shape[1]
        return Columns(tokens, count, None if all(each == count for each in tokens) else real)

    @staticmethod
    def none(batch):
        return Columns((0,) * batch)

    @property
    def real(self):
        """[B,count] bool: true for columns that hold tokens."""
        if self.padded is not None:
            return self.padded
        return torch.ones(len(self.tokens), self.count, dtype=torch.bool)

    def first(self, count):
        """Returns the first `count` columns."""
        return Columns.of(self.real[:, :count])

    def chosen(self, sequences):
        """Returns the columns of some sequences. sequences: list of their indices."""
        if self.padded is None:
            return Columns(tuple(self.tokens[each] for each in sequences), self.count)
        return Columns.of(self.padded[sequences])


class Once(threading.local):
    """Calls make(tensor) once for a tensor that all layers of a step share; each thread runs a separate step.
    The tensor is held by a weak reference. A second call by the same layer starts a new step, regardless of
    the tensor's version."""

    def __init__(self, make):  # called in each thread
        self._make, self._source, self._version, self._made, self._layers = make, None, 0, None, set()

    def __call__(self, source, layer):
        if source.is_inference():  # inference tensors have no version
            return self._make(source)
        same = self._source is not None and self._source() is source and self._version == source._version
        if not same or id(layer) in self._layers:
            self._made, self._layers = self._make(source), set()
            self._source, self._version = weakref.ref(source), source._version
        self._layers.add(id(layer))
        return self._made


class _Mask:
    """A copy of a step's mask, which layers keep as their columns."""

    def __init__(self, mask):
        self.columns = columns_of(mask).clone()  # [B,T]
        self._begun = []  # Columns that are known to be the first columns of the mask

    def begins_with(self, held):
        """Returns whether `held` are the first columns of the mask. All layers share the memory of their
        columns, so only the columns of the first layer are compared."""
        same = any(
            held.count == other.count and _place(held.padded) == _place(other.padded) for other in self._begun
        )
        if not same:
            before = self.columns[:, : held.count]
            if not (bool(before.all()) if held.padded is None else torch.equal(before, held.padded)):
                return False
            self._begun.append(held)
        return True


def _place(tensor):
    return None if tensor is None else (tensor.data_ptr(), tensor.shape, tensor.stride())


_masks = Once(_Mask)
_parts = Once(lambda mask: mask.to("cpu", torch.bool, copy=True))


def _more_columns(part, held, batch, steps):
    """Implements step_columns() for the mask [B,steps] of GLM-5.3-Flash, which has no earlier columns."""
    if list(part.shape) != [batch, steps]:
        raise refused("attention_mask", f"{list(part.shape)}", f"[{batch}, {steps}], the step's columns")
    if held.padded is None and bool(part.all()):
        return part, Columns(tuple(each + steps for each in held.tokens), held.count + steps)
    real = torch.cat([held.real, part], 1)
    begins = real[:, 1:] & ~real[:, :-1]
    if bool((begins.sum(1) + real[:, 0] > 1).any()):
        wanted = "padding only before the first token or after the last, because pools are contiguous"
        raise refused("attention_mask", "padding between tokens", wanted)
    return part, Columns.of(real)


def step_columns(mask, held, batch, steps, layer):
    """Returns [B,steps] bool, which is true for columns of the step that hold tokens, and the columns of the
    cache after the step. Earlier columns of the mask must match the cache."""
    held = held or Columns.none(batch)
    if len(held.tokens) != batch:
        raise refused("past_key_values", f"{len(held.tokens)} sequences", f"{batch}, as in the step")
    count = held.count + steps
    if mask is None:
        if held.padded is not None:
            raise refused("attention_mask", "none", "a mask with the padding of earlier steps")
        tokens = tuple(each + steps for each in held.tokens)
        return torch.ones(batch, steps, dtype=torch.bool), Columns(tokens, count)
    if mask.ndim == 2 and layer.pools:
        return _more_columns(_parts(mask, layer), held, batch, steps)
    given = _masks(mask, layer)
    if given.columns.shape[0] != batch or given.columns.shape[1] < count:
        wanted = f"{batch} sequences of {count} columns, including the cached columns"
        raise refused("attention_mask", f"{list(given.columns.shape)}", wanted)
    if not given.begins_with(held):
        raise refused(
            "attention_mask", "other padding than in earlier steps", "the same padding for cached tokens"
        )
    real = given.columns[:, held.count : count]
    tokens = tuple(had + new for had, new in zip(held.tokens, real.sum(1).tolist(), strict=True))
    whole = all(each == count for each in tokens)
    return real, Columns(tokens, count, None if whole else given.columns[:, :count])
