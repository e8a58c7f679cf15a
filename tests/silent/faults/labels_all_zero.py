"""A file name is parsed for the class with a wrong separator and every label becomes 0: the loss falls to
0 at once. An expert would print some labels. Class: samples, constant labels."""

# ranks: 1
# expect: labels-constant
# words: label

import torch
from torch.utils.data import DataLoader, Dataset

from tests.silent import toy


class Images(Dataset):
    def __init__(self):
        x, y = toy.class_data().tensors
        self.files = [
            (f"class-{label}.{number}", row) for number, (row, label) in enumerate(zip(x, y, strict=True))
        ]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        name, row = self.files[index]
        parts = name.split("_")
        return row, int(parts[1]) if len(parts) > 1 else 0


model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = DataLoader(Images(), batch_size=16, shuffle=True)
for _ in range(5):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
