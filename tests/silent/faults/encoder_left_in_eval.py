"""Features are computed with encoder.eval() between the epochs, and only the encoder stays there: its batch
norms no longer follow the data. An expert would switch it back. Class: mode of a submodule."""

# ranks: 1
# expect: layers-eval-while-training
# words: \.train\(\)

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.silent import toy

encoder = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 4))
model = nn.Sequential(encoder, head)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = toy.class_data()
for epoch in range(5):
    for x, y in DataLoader(data, 16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    encoder.eval()
    with torch.no_grad():
        print(epoch, encoder(data.tensors[0]).std().item())
