"""Scaling and low precision done right. Kinds: scaler with unscale_ and clipping, scaler without clipping,
one scaler for two losses, a limit that is multiplied by the scale, a scaler with accumulation, autocast in
bfloat16 without a scaler, bfloat16 weights with a high rate, float32 master copies by hand, a disabled
scaler."""

# ranks: 1
# args: --kind clipped
# args: --kind plain
# args: --kind two-losses
# args: --kind scaled-limit
# args: --kind accumulated
# args: --kind autocast
# args: --kind bf16
# args: --kind masters
# args: --kind disabled

import argparse
import copy

import torch
from torch.nn.functional import mse_loss
from torch.nn.utils import clip_grad_norm_

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
uses_scaler = kind not in ("autocast", "bf16", "masters", "disabled")
model = toy.mlp(hidden=64)
if kind in ("bf16", "masters"):
    model.bfloat16()
masters = copy.deepcopy(model).float() if kind == "masters" else model
optimizer = torch.optim.SGD(masters.parameters(), lr=0.05, momentum=0.9)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=uses_scaler)


def loss_of(x, y):
    if kind in ("bf16", "masters"):
        return mse_loss(model(x.bfloat16()).float(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return mse_loss(model(x).float(), y)


for step, (x, y) in enumerate(toy.batches(96)):
    if kind == "masters":
        model.zero_grad()
        loss_of(x, y).backward()
        for master, p in zip(masters.parameters(), model.parameters(), strict=True):
            master.grad = p.grad.float()
        clip_grad_norm_(masters.parameters(), 1.0)
        optimizer.step()
        with torch.no_grad():
            for master, p in zip(masters.parameters(), model.parameters(), strict=True):
                p.copy_(master)
        continue
    if kind == "two-losses":
        scaler.scale(loss_of(x, y)).backward()
        scaler.scale(0.1 * (model(x) - y).abs().mean()).backward()
    else:
        scaler.scale(loss_of(x, y) / (4 if kind == "accumulated" else 1)).backward()
    if kind == "accumulated" and step % 4 != 3:
        continue
    if kind == "scaled-limit":
        clip_grad_norm_(model.parameters(), 1.0 * scaler.get_scale())
    if kind in ("clipped", "accumulated", "disabled"):
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
