"""Two ranks that fine-tune a part of a model. Kinds: a new head on a frozen backbone in evaluation mode,
features under no_grad, rates by layer, a second phase with a new wrapper, layers trained in turn with unused
parameters, adapters on a frozen layer, a static graph with checkpointing, a compiled wrapper, a wrapped
compiled model, only the head wrapped, views of the buckets as gradients, a frozen teacher, parameters that
the wrapper ignores."""

# ranks: 2
# args: --kind head
# args: --kind features
# args: --kind layer-rates
# args: --kind wrapped-again
# args: --kind in-turn
# args: --kind adapters
# args: --kind static-graph
# args: --kind compiled-wrapper
# args: --kind wrapped-compiled
# args: --kind only-head-wrapped
# args: --kind bucket-views
# args: --kind teacher
# args: --kind ignored

import argparse
import copy

import torch
from torch import nn
from torch.nn.functional import cross_entropy, kl_div
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(toy.norm_net(8, 16), nn.Dropout(0.1), nn.ReLU())
        self.down, self.up = nn.Linear(16, 4, bias=False), nn.Linear(4, 16, bias=False)
        nn.init.zeros_(self.up.weight)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        if kind == "features":
            with torch.no_grad():
                x = self.backbone(x)
        elif kind == "static-graph":
            x = checkpoint(self.backbone, x, use_reentrant=False)
        else:
            x = self.backbone(x)
        if kind not in ("head", "features", "only-head-wrapped"):
            x = x + self.up(self.down(x))
        return self.head(x)


def main():
    toy.init_group()
    model = Classifier()
    teacher = copy.deepcopy(model).eval().requires_grad_(False)
    is_frozen = kind in ("head", "features", "adapters", "wrapped-again", "only-head-wrapped")
    if is_frozen or kind == "teacher":
        model.backbone.requires_grad_(False)
    if kind in ("head", "features", "only-head-wrapped"):
        model.down.requires_grad_(False)
        model.up.requires_grad_(False)
    if kind == "ignored":
        model.backbone.requires_grad_(False)
        names = [f"backbone.{name}" for name, _ in model.backbone.named_parameters()]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    if kind == "only-head-wrapped":
        model.head = DistributedDataParallel(model.head)
        ddp = model
    elif kind == "wrapped-compiled":
        ddp = DistributedDataParallel(torch.compile(model, backend="eager"))
    else:
        ddp = DistributedDataParallel(
            model,
            find_unused_parameters=kind == "in-turn",
            static_graph=kind == "static-graph",
            gradient_as_bucket_view=kind == "bucket-views",
        )
        if kind == "compiled-wrapper":
            ddp = torch.compile(ddp, backend="eager")
    groups = [
        {"params": [p for p in part.parameters() if p.requires_grad], "lr": rate}
        for part, rate in ((model.backbone, 1e-4), (model.up, 5e-4), (model.down, 5e-4), (model.head, 2e-3))
    ]
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]])
    if kind == "in-turn":
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    dataset = toy.class_data(320)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(dataset, 16, sampler=sampler)
    for epoch in range(8):
        sampler.set_epoch(epoch)
        if kind == "wrapped-again" and epoch == 3:
            model.requires_grad_(True)
            ddp = DistributedDataParallel(model)
            optimizer = torch.optim.AdamW(ddp.parameters(), lr=1e-3)
        if kind == "in-turn":
            model.backbone.requires_grad_(epoch % 2 == 0)
        ddp.train()
        if is_frozen and epoch < 3:
            model.backbone.eval()
        for x, y in loader:
            logits = ddp(x)
            loss = cross_entropy(logits, y)
            if kind == "teacher":
                with torch.no_grad():
                    goal = teacher(x).softmax(1)
                loss = 0.5 * loss + 0.5 * kl_div(logits.log_softmax(1), goal, reduction="batchmean")
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if kind == "in-turn":
            model.backbone.requires_grad_(True)
    toy.end_group()


main()
