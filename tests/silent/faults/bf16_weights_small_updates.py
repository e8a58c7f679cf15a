"""The model is cast to bfloat16 and trained with a fine-tuning rate: nearly all updates round away. An expert
would keep float32 weights and use autocast. Class: updates lost to rounding."""

# ranks: 1
# expect: weights-unchanged
# words: float32

import torch

from tests.silent import toy

model = toy.mlp(hidden=64).bfloat16()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
for x, y in toy.batches(80):
    prediction = model(x.bfloat16())
    loss = torch.nn.functional.mse_loss(prediction.float(), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
