"""The request of each query token."""

from dataclasses import dataclass
from functools import cached_property

import torch

from ...errors import invalid
from .._check import require


@dataclass
class Batch:
    """Requests of q_len tokens each; with `cum` [B+1] i32, request b has tokens [cum[b], cum[b+1])."""

    tokens: int
    requests: int
    q_len: int
    cum: torch.Tensor | None
    device: torch.device

    @classmethod
    def of(cls, query, cum):
        """Returns the batch of a query [B,Q,H,D] or [T,H,D]. Without `cum`, each token of [T,H,D] is a
        request.
        """
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
        """Returns values [B] i32 of requests as [T], repeated per token; 0 for tokens of no request."""
        if self.cum is None:
            return values[:, None].expand(-1, self.q_len).flatten()
        return self.own(values[self._request.clamp(0, self.requests - 1)])

    def own(self, lengths):
        """Returns lengths [T] i32 with 0 for tokens outside [cum[0], cum[B]), such as padding of a CUDA
        graph.
        """
        if self.cum is None:
            return lengths
        return torch.where((self._request >= 0) & (self._request < self.requests), lengths, 0)

    def visible(self, seq_lens):
        """Returns how many tokens of its request each token sees, including itself: [T] i32, <= 0 for tokens
        of no request.

        seq_lens: [B] i32, including these tokens.
        """
        if self.cum is None:
            behind = torch.arange(self.q_len - 1, -1, -1, dtype=torch.int32, device=self.device)
            return (seq_lens[:, None] - behind).flatten()
        return self.own(self.spread(seq_lens - self.cum[1:]) + self._count(1))

    def _count(self, first=0):
        return torch.arange(first, first + self.tokens, dtype=torch.int32, device=self.device)

    @cached_property
    def _request(self):
        """Returns the request of each token; -1 or B for tokens of no request."""
        return torch.searchsorted(self.cum, self._count(), right=True, out_int32=True) - 1
