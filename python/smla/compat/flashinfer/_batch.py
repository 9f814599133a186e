"""Which request each query token belongs to."""

from dataclasses import dataclass
from functools import cached_property

import torch

from ...errors import invalid
from .._check import require


@dataclass
class Batch:
    """requests of q_len tokens each, or with `cum` [B+1] i32: tokens [cum[b], cum[b+1]) of request b."""

    tokens: int
    requests: int
    q_len: int
    cum: torch.Tensor | None
    device: torch.device

    @classmethod
    def of(cls, query, cum):
        """The batch of a query [B,Q,H,D] or [T,H,D], whose tokens are requests unless `cum` says more."""
        if cum is None:
            requests, q_len = query.shape[:2] if query.ndim == 4 else (query.shape[0], 1)
            return cls(requests * q_len, requests, q_len, None, query.device)
        if query.ndim != 3:
            raise invalid("query.ndim", query.ndim, "3 with cum_seq_lens_q: [tokens,H,D]")
        require(cum, "cum_seq_lens_q", (torch.int32,), (None,), like=query)
        if cum.shape[0] < 2:
            raise invalid("cum_seq_lens_q.shape[0]", cum.shape[0], "at least 2: requests + 1")
        return cls(query.shape[0], cum.shape[0] - 1, 0, cum.contiguous(), query.device)

    def spread(self, values):
        """values [B] i32 of requests, repeated for their tokens: [T]; 0 for tokens of no request."""
        if self.cum is None:
            return values[:, None].expand(-1, self.q_len).flatten()
        return self.own(values[self._request.clamp(0, self.requests - 1)])

    def own(self, lengths):
        """lengths [T] i32, 0 for tokens outside of [cum[0], cum[B]): padding of a CUDA graph."""
        if self.cum is None:
            return lengths
        return torch.where((self._request >= 0) & (self._request < self.requests), lengths, 0)

    def visible(self, seq_lens):
        """How many tokens of its request each token sees, itself included: [T] i32.

        0 or less for tokens of no request.

        seq_lens: [B] i32, these tokens included.
        """
        if self.cum is None:
            behind = torch.arange(self.q_len - 1, -1, -1, dtype=torch.int32, device=self.device)
            return (seq_lens[:, None] - behind).flatten()
        return self.own(self.spread(seq_lens - self.cum[1:]) + self._count(1))

    def _count(self, first=0):
        return torch.arange(first, first + self.tokens, dtype=torch.int32, device=self.device)

    @cached_property
    def _request(self):
        """The request of each token; -1 or B for tokens of no request."""
        return torch.searchsorted(self.cum, self._count(), right=True, out_int32=True) - 1
