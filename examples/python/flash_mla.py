"""Runs code for flash_mla on any device. Only one import differs.

python examples/python/flash_mla.py        (requires PyTorch)
"""

import sys

try:
    import torch
except ImportError:
    print("skipped: this example requires PyTorch")
    sys.exit(77)

import smla
import smla.compat.flash_mla as flash_mla  # instead of: import flash_mla

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
BATCH, HEADS, TOPK, PAGES, PAGE = 3, 20, 100, 4, 64  # FlashMLA does not support this HEADS and TOPK

cache = smla.Cache.empty("fp8_656", PAGES, PAGE, like=torch.empty(0, device=device))
keys = torch.randn(PAGES * PAGE, 512, device=device)
smla.write_kv(
    keys, torch.arange(len(keys), device=device), cache, tail=torch.randn(len(keys), 64, device=device)
)
k_cache = cache.array.view(PAGES, PAGE, 1, 656)

q = torch.randn(BATCH, 1, HEADS, 576, device=device, dtype=torch.bfloat16)
indices = torch.randint(0, len(keys), (BATCH, 1, TOPK), device=device, dtype=torch.int32)
lens = torch.full((BATCH,), TOPK, device=device, dtype=torch.int32)

metadata, splits = flash_mla.get_mla_metadata()
out, lse = flash_mla.flash_mla_with_kvcache(
    q, k_cache, None, lens, 512, metadata, splits, is_fp8_kvcache=True, indices=indices, topk_length=lens
)
assert torch.isfinite(out.float()).all()
print(f"{device}: out {list(out.shape)} {out.dtype}, lse {list(lse.shape)}")
