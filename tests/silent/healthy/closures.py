"""Optimizers with a closure, and steps of two passes. Kinds: LBFGS, SAM with two backward passes and weights
moved in between, SAM as an optimizer around another, Adam with a closure, gradients computed with
autograd.grad, SGD by hand."""

# ranks: 1
# args: --kind lbfgs
# args: --kind sam
# args: --kind sam-optimizer
# args: --kind adam-closure
# args: --kind autograd-grad
# args: --kind by-hand

import argparse

import torch
from torch.nn.functional import mse_loss

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Sam(torch.optim.Optimizer):
    def __init__(self, params, base, rho=0.05):
        super().__init__(params, {"rho": rho})
        self.base = base

    @torch.no_grad()
    def step(self, closure):
        closure = torch.enable_grad()(closure)
        loss = closure()
        moved = [(p, 0.05 * p.grad / (p.grad.norm() + 1e-9)) for g in self.param_groups for p in g["params"]]
        for p, offset in moved:
            p.add_(offset)
        closure()
        for p, offset in moved:
            p.sub_(offset)
        self.base.step()
        return loss


model = toy.mlp(hidden=16)
params = list(model.parameters())
inner = torch.optim.SGD(params, lr=0.05, momentum=0.9)
optimizer = {
    "lbfgs": lambda: torch.optim.LBFGS(params, lr=0.2, max_iter=5, line_search_fn="strong_wolfe"),
    "sam-optimizer": lambda: Sam(params, inner),
    "adam-closure": lambda: torch.optim.Adam(params, lr=3e-3),
}.get(kind, lambda: inner)()
for x, y in toy.batches(80, size=32):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = mse_loss(model(x), y)
        loss.backward()
        return loss

    if kind in ("lbfgs", "sam-optimizer", "adam-closure"):
        optimizer.step(closure)
    elif kind == "sam":
        closure()
        moved = [(p, 0.05 * p.grad / (p.grad.norm() + 1e-9)) for p in params]
        for p, offset in moved:
            p.data.add_(offset)
        closure()
        for p, offset in moved:
            p.data.sub_(offset)
        optimizer.step()
    else:
        grads = torch.autograd.grad(mse_loss(model(x), y), params)
        for p, grad in zip(params, grads, strict=True):
            if kind == "by-hand":
                p.data -= 0.05 * grad
            else:
                p.grad = grad
        if kind == "autograd-grad":
            optimizer.step()
