"""The dataset has a NumPy generator of its own for augmentation, which each worker copies: the workers
draw the same noise. An expert would seed it in worker_init_fn. Class: samples, randomness in workers."""

# ranks: 1
# expect: workers-draw-the-same
# words: worker

import numpy
import torch
from torch.utils.data import DataLoader, Dataset

from tests.silent import toy


class Augmented(Dataset):
    def __init__(self):
        self.x, self.y = toy.regression_data().tensors
        self.random = numpy.random.default_rng(0)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        noise = torch.from_numpy(self.random.normal(scale=0.1, size=8)).float()
        return self.x[index] + noise, self.y[index]


if __name__ == "__main__":
    model = toy.mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loader = DataLoader(Augmented(), batch_size=16, shuffle=True, num_workers=2)
    for _ in range(3):
        for x, y in loader:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
