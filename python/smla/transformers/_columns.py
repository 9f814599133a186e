"""Which columns of a cache hold tokens: transformers counts padding, too, a session tokens alone."""

import dataclasses
import threading
import weakref

import torch

from ._mask import columns_of, refused


@dataclasses.dataclass(frozen=True)
class Columns:
    """What a step costs does not grow with the columns before it: without padding there is no tensor, and
    with padding the layers of a step share one."""

    tokens: tuple[int, ...]  # of each sequence
    count: int = 0
    padded: torch.Tensor | None = None  # [B,count] bool on the host: real columns; None: all are

    @staticmethod
    def of(real):
        """real: [B,count] bool on the host."""
        tokens, count = tuple(real.sum(1).tolist()), real.shape[1]
        return Columns(tokens, count, None if all(each == count for each in tokens) else real)

    @staticmethod
    def none(batch):
        return Columns((0,) * batch)

    @property
    def real(self):
        """[B,count] bool."""
        if self.padded is not None:
            return self.padded
        return torch.ones(len(self.tokens), self.count, dtype=torch.bool)

    def first(self, count):
        """The first `count` columns."""
        return Columns.of(self.real[:, :count])

    def chosen(self, sequences):
        """The columns of those sequences, a list of numbers."""
        if self.padded is None:
            return Columns(tuple(self.tokens[each] for each in sequences), self.count)
        return Columns.of(self.padded[sequences])


class Once(threading.local):
    """Calls make(tensor) once for a tensor that all layers of a step share; each thread runs a separate step.
    The tensor is held weakly. A layer that asks a second time is in a later step, whatever the tensor's
    version."""

    def __init__(self, make):  # runs in each thread
        self._make, self._source, self._version, self._made, self._layers = make, None, 0, None, set()

    def __call__(self, source, layer):
        if source.is_inference():  # has no version
            return self._make(source)
        same = self._source is not None and self._source() is source and self._version == source._version
        if not same or id(layer) in self._layers:
            self._made, self._layers = self._make(source), set()
            self._source, self._version = weakref.ref(source), source._version
        self._layers.add(id(layer))
        return self._made


class _Mask:
    """A step's mask, in memory of its own: layers keep it as their columns."""

    def __init__(self, mask):
        self.columns = columns_of(mask).clone()  # [B,T]
        self._begun = []  # columns that it was found to begin with

    def begins_with(self, held):
        """Whether these are its first columns. All layers hold the same, in the same memory: only the first
        layer's are compared."""
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
    """step_columns() of the mask [B,steps] that GLM-5.3-Flash gives its layers, without earlier columns."""
    if list(part.shape) != [batch, steps]:
        raise refused("attention_mask", f"{list(part.shape)}", f"[{batch}, {steps}], the step's columns")
    if held.padded is None and bool(part.all()):
        return part, Columns(tuple(each + steps for each in held.tokens), held.count + steps)
    real = torch.cat([held.real, part], 1)
    begins = real[:, 1:] & ~real[:, :-1]
    if bool((begins.sum(1) + real[:, 0] > 1).any()):
        wanted = "padding before the first token or behind the last: pools are of neighbours"
        raise refused("attention_mask", "padding between tokens", wanted)
    return part, Columns.of(real)


def step_columns(mask, held, batch, steps, layer):
    """[B,steps] bool, which columns of a step hold tokens, and the columns of the cache with them. Those
    before must be what the cache was fed."""
    held = held or Columns.none(batch)
    if len(held.tokens) != batch:
        raise refused("past_key_values", f"{len(held.tokens)} sequences", f"{batch}, those of the step")
    count = held.count + steps
    if mask is None:
        if held.padded is not None:
            raise refused("attention_mask", "none", "one with the padding of earlier steps")
        tokens = tuple(each + steps for each in held.tokens)
        return torch.ones(batch, steps, dtype=torch.bool), Columns(tokens, count)
    if mask.ndim == 2 and layer.pools:
        return _more_columns(_parts(mask, layer), held, batch, steps)
    given = _masks(mask, layer)
    if given.columns.shape[0] != batch or given.columns.shape[1] < count:
        wanted = f"{batch} sequences of {count} columns, those of the cache too"
        raise refused("attention_mask", f"{list(given.columns.shape)}", wanted)
    if not given.begins_with(held):
        raise refused(
            "attention_mask", "other padding than in earlier steps", "the same for tokens in the cache"
        )
    real = given.columns[:, held.count : count]
    tokens = tuple(had + new for had, new in zip(held.tokens, real.sum(1).tolist(), strict=True))
    whole = all(each == count for each in tokens)
    return real, Columns(tokens, count, None if whole else given.columns[:, :count])
