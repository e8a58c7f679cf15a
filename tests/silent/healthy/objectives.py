"""Losses, gradients and evaluations that look unusual. Each kind is the function of that name."""

# ranks: 1
# args: --kind projected-gradients
# args: --kind clipped-per-sample
# args: --kind cleared-by-hand
# args: --kind cleared-as-data
# args: --kind cleared-everywhere
# args: --kind cleared-after-step
# args: --kind clipped-twice
# args: --kind masked-words
# args: --kind mixup
# args: --kind distillation
# args: --kind two-views
# args: --kind momentum-target
# args: --kind growing-queue
# args: --kind centers
# args: --kind curriculum
# args: --kind new-tasks
# args: --kind precise-norms
# args: --kind adapted-norms
# args: --kind monte-carlo-mode
# args: --kind frozen-norms-small-batch
# args: --kind compensated-bf16
# args: --kind chosen-by-kind
# args: --kind alternating-heads
# args: --kind penalised
# args: --kind staged

import argparse
import copy
import random

import torch
from torch import nn
from torch.nn.functional import cosine_similarity, cross_entropy, kl_div, mse_loss, normalize
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
random.seed(0)


def adam(*modules, rate=2e-3):
    return torch.optim.Adam([p for module in modules for p in module.parameters()], lr=rate)


def update(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def projected_gradients():
    """PCGrad: the gradients of two losses are copied, cleared, and written back without their conflict."""
    model = toy.mlp(out=2)
    params = list(model.parameters())
    optimizer = adam(model)
    for x, y in toy.batches(100):
        out, grads = model(x), []
        for loss in (mse_loss(out[:, :1], y), mse_loss(out[:, 1:], y.square())):
            loss.backward(retain_graph=True)
            grads.append(torch.cat([p.grad.flatten() for p in params]))
            optimizer.zero_grad()
        first, second = grads
        if first @ second < 0:
            first, second = (
                first - (first @ second) / second.square().sum() * second,
                second - (first @ second) / first.square().sum() * first,
            )
        for p, grad in zip(params, (first + second).split([p.numel() for p in params]), strict=True):
            p.grad = grad.view_as(p).clone()
        optimizer.step()


def clipped_per_sample():
    """Differential privacy by hand: each sample's gradient is clipped, then noise is added to the sum."""
    model = toy.mlp(hidden=16)
    params = list(model.parameters())
    optimizer = torch.optim.SGD(params, lr=0.1)
    for x, y in toy.batches(80, size=8):
        sums = [torch.zeros_like(p) for p in params]
        for row, goal in zip(x, y, strict=True):
            mse_loss(model(row[None]), goal[None]).backward()
            nn.utils.clip_grad_norm_(params, 1.0)
            for total, p in zip(sums, params, strict=True):
                total += p.grad
            model.zero_grad()
        for total, p in zip(sums, params, strict=True):
            p.grad = (total + 0.05 * torch.randn_like(p)) / len(x)
        optimizer.step()


def cleared(clear, before=False):
    model = toy.mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for x, y in toy.batches(100):
        if before:
            clear(model, optimizer)
        mse_loss(model(x), y).backward()
        optimizer.step()
        if not before:
            clear(model, optimizer)


def cleared_by_hand():
    def clear(model, optimizer):
        for p in model.parameters():
            if p.grad is not None:
                p.grad.detach_()
                p.grad.zero_()

    cleared(clear)


def cleared_as_data():
    def clear(model, optimizer):
        for p in model.parameters():
            p.grad.data.zero_()

    cleared(clear)


def cleared_everywhere():
    def clear(model, optimizer):
        model.zero_grad(set_to_none=False)
        optimizer.zero_grad(set_to_none=False)

    cleared(clear, before=True)


def cleared_after_step():
    cleared(lambda model, optimizer: [setattr(p, "grad", None) for p in model.parameters()])


def clipped_twice():
    model = toy.mlp()
    optimizer = adam(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    for x, y in toy.batches(100):
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(mse_loss(model(x), y)).backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), float("inf"))  # only to log it
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        if torch.isfinite(norm):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()


def masked_words():
    """Masked language model: most labels are -100, tied embeddings."""
    embed, layer = nn.Embedding(21, 16), nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    decoder = nn.Linear(16, 21)
    decoder.weight = embed.weight
    model = nn.ModuleList([embed, layer, decoder])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    tokens = toy.token_data()
    for _ in range(80):
        rows = tokens[torch.randint(len(tokens), (16,))]
        is_masked = torch.rand(rows.shape) < 0.15
        is_masked[0, 0] = True
        labels = rows.masked_fill(~is_masked, -100)
        logits = decoder(layer(embed(rows.masked_fill(is_masked, 20))))
        update(optimizer, cross_entropy(logits.flatten(0, 1), labels.flatten()))


def mixup():
    model = nn.Sequential(toy.norm_net(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = adam(model)
    for x, y in toy.batches(100, toy.class_data()):
        share, order = random.betavariate(0.4, 0.4), torch.randperm(len(x))
        logits = model(share * x + (1 - share) * x[order])
        losses = (cross_entropy(logits, goal, label_smoothing=0.1) for goal in (y, y[order]))
        first, second = losses
        update(optimizer, share * first + (1 - share) * second)


def distillation():
    """The teacher is a trained network in the same module as the student, in evaluation mode."""
    model = nn.ModuleDict({"teacher": toy.norm_net(8, 4), "student": toy.norm_net(8, 4, hidden=8)})
    optimizer = adam(model["teacher"])
    data = toy.class_data()
    for x, y in toy.batches(60, data):
        update(optimizer, cross_entropy(model["teacher"](x), y))
    model["teacher"].eval().requires_grad_(False)
    optimizer = adam(model["student"])
    for x, y in toy.batches(100, data):
        logits, goal = model["student"](x), model["teacher"](x)
        soft = kl_div((logits / 2).log_softmax(1), (goal / 2).softmax(1), reduction="batchmean")
        update(optimizer, 0.3 * cross_entropy(logits, y) + 2.8 * soft)


def two_views():
    """SimCLR on one rank, whose loss is a cross-entropy with the places of the positives as labels."""
    model = nn.Sequential(toy.norm_net(8, 16), nn.ReLU(), nn.Linear(16, 8))
    optimizer = adam(model)
    for x, _ in toy.batches(100):
        both = normalize(model(torch.cat([x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x)])))
        scores = (both @ both.T / 0.2).masked_fill(torch.eye(2 * len(x), dtype=torch.bool), -1e9)
        update(optimizer, cross_entropy(scores, (torch.arange(2 * len(x)) + len(x)) % (2 * len(x))))


def momentum_target():
    """BYOL: the target keeps requires_grad and training mode, and runs under no_grad."""
    online = nn.Sequential(toy.norm_net(8, 16), nn.ReLU(), nn.Linear(16, 8))
    target, predictor = copy.deepcopy(online), toy.mlp(8, 8)
    model = nn.ModuleList([online, predictor, target])
    optimizer = adam(model)
    for step, (x, _) in enumerate(toy.batches(120)):
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        with torch.no_grad():
            goals = [target(view) for view in views]
        guesses = [predictor(online(view)) for view in views]
        loss = -sum(cosine_similarity(p, g).mean() for p, g in zip(guesses, goals[::-1], strict=True))
        update(optimizer, loss)
        decay = 1 - 0.05 * (1 - step / 240)
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow.mul_(decay).add_(fast, alpha=1 - decay)


def growing_queue():
    """MoCo with a queue that starts empty: the loss rises with the number of negatives."""
    query = toy.mlp(8, 8)
    key = copy.deepcopy(query).requires_grad_(False)
    optimizer = adam(query, rate=5e-4)
    queue = torch.zeros(0, 8)
    for x, _ in toy.batches(500):
        q = normalize(query(x + 0.3 * torch.randn_like(x)))
        with torch.no_grad():
            k = normalize(key(x + 0.3 * torch.randn_like(x)))
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.T], 1) / 0.2
        if len(queue):
            update(optimizer, cross_entropy(logits, torch.zeros(len(x), dtype=torch.long)))
        queue = torch.cat([queue, k])[-4096:]
        with torch.no_grad():
            for slow, fast in zip(key.parameters(), query.parameters(), strict=True):
                slow.lerp_(fast, 0.02)


def centers():
    """Center loss: the centers are a parameter without gradients, moved by hand."""
    body, head = toy.mlp(8, 4), nn.Linear(4, 4)
    points = nn.Embedding(4, 4)
    model = nn.ModuleList([body, head, points])
    optimizer = adam(model)
    for x, y in toy.batches(120, toy.class_data()):
        features = body(x)
        near = points(y).detach()
        update(optimizer, cross_entropy(head(features.relu()), y) + 0.05 * mse_loss(features, near))
        for c in range(4):
            if (y == c).any():
                points.weight.data[c].lerp_(features[y == c].mean(0).detach(), 0.1)


def curriculum():
    """Each stage is more difficult than the one before, so that the loss rises from stage to stage."""
    model = toy.mlp(hidden=32)
    optimizer = adam(model)
    for step in range(450):
        x = torch.randn(64, 8)
        y = (1 + step // 90) * (x[:, :1] * x[:, 1:2] + 0.3 * torch.randn(64, 1))
        update(optimizer, mse_loss(model(x), y))


def new_tasks():
    """Tasks in sequence with a head each: the loss jumps up with each task, and falls."""
    body, heads = toy.mlp(8, 16), nn.ModuleList([nn.Linear(16, 1) for _ in range(4)])
    optimizer = adam(body, heads)
    for task in range(4):
        for step in range(100):
            x, y = toy.rank_batch(1000 * task + step)
            update(optimizer, mse_loss(heads[task](body(x).relu()), (1 + 2 * task) * y + task))


def penalised():
    """The weight of a penalty grows, as in methods with multipliers."""
    model = toy.mlp()
    optimizer = adam(model)
    for step, (x, y) in enumerate(toy.batches(450)):
        out = model(x)
        update(optimizer, mse_loss(out, y) + 0.01 * 1.01**step * out.clamp_min(0).square().mean())


def staged():
    """A second loss is added in the second half."""
    model, other = toy.mlp(8, 4), toy.mlp(4, 8)
    optimizer = adam(model, other)
    for step, (x, y) in enumerate(toy.batches(400, toy.class_data())):
        code = model(x)
        loss = cross_entropy(code, y)
        if step >= 200:
            loss = loss + mse_loss(other(code), x)
        update(optimizer, loss)


def trained_norm_net():
    model = nn.Sequential(toy.norm_net(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = adam(model)
    return model, optimizer, DataLoader(toy.class_data(), 16, shuffle=True)


def norms_of(model):
    return [module for module in model.modules() if isinstance(module, nn.BatchNorm1d)]


def precise_norms():
    """As in fvcore: statistics are computed anew on training data, with a momentum of 1, in training mode."""
    model, optimizer, loader = trained_norm_net()
    for _ in range(5):
        for x, y in loader:
            update(optimizer, cross_entropy(model(x), y))
        norms = norms_of(model)
        momenta = [norm.momentum for norm in norms]
        sums = [[torch.zeros(norm.num_features) for norm in norms] for _ in range(2)]
        for norm in norms:
            norm.momentum = 1.0
        with torch.no_grad():
            for number, (x, _) in enumerate(loader):
                model(x)
                for mean, var, norm in zip(*sums, norms, strict=True):
                    mean += (norm.running_mean - mean) / (number + 1)
                    var += (norm.running_var - var) / (number + 1)
        for mean, var, norm, momentum in zip(*sums, norms, momenta, strict=True):
            norm.running_mean, norm.running_var, norm.momentum = mean, var, momentum
        model.eval()
        with torch.no_grad():
            model(toy.class_data(64, seed=9).tensors[0])
        model.train()


def adapted_norms():
    """Test-time adaptation: statistics of a shifted set, for which only batch norms are in training mode."""
    model, optimizer, loader = trained_norm_net()
    shifted = DataLoader(toy.class_data(128, seed=5), 32)
    for _ in range(5):
        for x, y in loader:
            update(optimizer, cross_entropy(model(x), y))
        adapted = copy.deepcopy(model).eval()
        for norm in norms_of(adapted):
            norm.train()
        with torch.no_grad():
            for x, _ in shifted:
                adapted(x + 1)


def monte_carlo_mode():
    """Uncertainty from dropout, once per epoch, after an evaluation in evaluation mode."""
    model = nn.Sequential(toy.mlp(8, 16, dropout=0.2), nn.ReLU(), nn.Linear(16, 4))
    optimizer = adam(model)
    test = DataLoader(toy.class_data(96, seed=9), 32)
    for _ in range(5):
        model.train()
        for x, y in DataLoader(toy.class_data(), 16, shuffle=True):
            update(optimizer, cross_entropy(model(x), y))
        model.eval()
        with torch.no_grad():
            print(sum(int((model(x).argmax(1) == y).sum()) for x, y in test))
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.train()
        with torch.no_grad():
            for x, _ in test:
                torch.stack([model(x).softmax(1) for _ in range(5)]).std(0)


def frozen_norms_small_batch():
    """Detection: two images per batch, batch norms frozen and in evaluation mode."""
    model, _, _ = trained_norm_net()
    for norm in norms_of(model):
        norm.eval().requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    loader = DataLoader(toy.class_data(), 2, shuffle=True)
    for _ in range(2):
        model.train()
        for norm in norms_of(model):
            norm.eval()
        for x, y in loader:
            update(optimizer, cross_entropy(model(x), y))


class Compensated(torch.optim.Optimizer):
    """SGD for bfloat16 weights that adds what was rounded away in the next step (Kahan summation)."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                rest = self.state[p].setdefault("rest", torch.zeros_like(p))
                rest.add_(p.grad, alpha=-group["lr"])
                before = p.clone()
                p.add_(rest)
                rest.add_(before - p)


def compensated_bf16():
    model = toy.mlp(hidden=64).bfloat16()
    optimizer = Compensated(model.parameters(), 2e-3)
    for x, y in toy.batches(150):
        update(optimizer, mse_loss(model(x.bfloat16()).float(), y))


def chosen_by_kind():
    """Only the norms are trained, as in test-time adaptation; the others keep requires_grad."""
    layers = [nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 16), nn.LayerNorm(16)]
    model = nn.Sequential(*layers, nn.Linear(16, 4))
    params = [p for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()]
    optimizer = torch.optim.Adam(params, lr=1e-2)
    for x, y in toy.batches(100, toy.class_data()):
        update(optimizer, cross_entropy(model(x), y))


def alternating_heads():
    """Two tasks with batches of their own, in turn; each has a head and an optimizer for it."""
    body, heads = toy.mlp(8, 16), nn.ModuleList([nn.Linear(16, 4), nn.Linear(16, 1)])
    optimizer = adam(body)
    head_optimizers = [adam(head) for head in heads]
    pairs = zip(toy.batches(90, toy.class_data()), toy.batches(90), strict=True)
    for classes, values in pairs:
        for task, (x, y) in enumerate((classes, values)):
            out = heads[task](body(x).relu())
            loss = cross_entropy(out, y) if task == 0 else mse_loss(out, y)
            optimizer.zero_grad()
            head_optimizers[task].zero_grad()
            loss.backward()
            optimizer.step()
            head_optimizers[task].step()


globals()[kind.replace("-", "_")]()
