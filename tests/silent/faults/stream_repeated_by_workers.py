"""An IterableDataset ignores get_worker_info, so that each of two workers yields every sample. An expert
would split the stream by worker. Class: samples, repeated by workers."""

# ranks: 1
# expect: repeated-by-workers
# words: worker

import torch
from torch.utils.data import DataLoader, IterableDataset

from tests.silent import toy


class Lines(IterableDataset):
    def __init__(self, tensors):
        self.tensors = tensors

    def __iter__(self):
        for x, y in zip(*self.tensors, strict=True):
            yield {"inputs": x, "labels": y}


if __name__ == "__main__":
    model = toy.mlp(out=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(2):
        for batch in DataLoader(Lines(toy.class_data().tensors), batch_size=8, num_workers=2):
            loss = torch.nn.functional.cross_entropy(model(batch["inputs"]), batch["labels"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
