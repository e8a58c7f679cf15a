"""Find attention layers by structure: query, key and value in one module, and the output layer after them.

Query, key and value are identified by the names that model families use for them. The output layer is
identified by its shape, because it may be in another module (as in BERT). A head is never split, so
the number of heads must be divisible by the number of ranks. Read plan.py first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from rankdeck.base.errors import ModelError, format_choices
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.torch_compat.modules import has_packed_projection, own_parameters

QUERY_NAMES = ("query", "q_proj", "q", "wq", "q_lin", "to_q", "query_proj", "linear_q")
KEY_NAMES = ("key", "k_proj", "k", "wk", "k_lin", "to_k", "key_proj", "linear_k")
VALUE_NAMES = ("value", "v_proj", "v", "wv", "v_lin", "to_v", "value_proj", "linear_v")
HEAD_WIDTHS = ("head_dim", "head_width", "attention_head_size", "dim_head", "d_kv", "head_size")
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
KEY_VALUE_COUNTS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
WIDTHS = ("all_head_size", "inner_dim")
_ATTENTION_LAYERS = 4
"""Number of linear layers in an attention layer: query, key, value and output."""


@dataclass(frozen=True)
class HeadCount:
    """An attribute that depends on the module's number of heads, with its value on one rank."""

    module: str
    attribute: str
    count: int


@dataclass(frozen=True)
class AttentionLayers:
    """One attention layer: its linear layers, the block around it, its number of heads, and the attributes to
    adapt."""

    block: str
    columns: tuple[str, str, str]
    row: str
    num_heads: int
    counts: tuple[HeadCount, ...]


def find_attentions(model: nn.Module, num_ranks: int) -> list[AttentionLayers]:
    """Find all attention layers of a model, in the model's order.

    Raises:
        ModelError: the heads cannot be divided among the ranks, or a fused layer cannot be cut by heads.
    """
    _require_unfused(model)
    attentions = []
    for name, module in model.named_modules():
        children = {
            child: child_module
            for child, child_module in module.named_children()
            if isinstance(child_module, nn.Linear) and has_plain_weight(child_module)
        }
        names = [
            next((n for n in known_names if n in children), None)
            for known_names in (QUERY_NAMES, KEY_NAMES, VALUE_NAMES)
        ]
        query, key, value = names
        if query is None or key is None or value is None:
            continue
        columns = (_join_names(name, query), _join_names(name, key), _join_names(name, value))
        block = enclosing_block(model, name)
        row = _output_layer(model, block, columns)
        if row is None:
            continue
        heads, counts = _head_counts(module, name, children[query], children[key], num_ranks)
        attentions.append(AttentionLayers(block, columns, row, heads, counts))
    return attentions


def enclosing_block(model: nn.Module, name: str) -> str:
    """Return the name of the item of a ModuleList or Sequential (a transformer block) that contains a module,
    or else the name of the module's parent.

    If lists are nested, this is the item of the innermost list, unless that item contains only the attention
    layer, as in T5.
    """
    item, parent = name, name.rpartition(".")[0]
    innermost = None
    while parent:
        if isinstance(model.get_submodule(parent), nn.ModuleList | nn.Sequential):
            innermost = innermost or item
            if sum(1 for _ in iter_linears(model, item)) > _ATTENTION_LAYERS:
                return item
        item, parent = parent, parent.rpartition(".")[0]
    return innermost or name.rpartition(".")[0]


def iter_linears(model: nn.Module, block: str) -> Iterator[tuple[str, nn.Linear]]:
    """Yield a block's linear layers that have plain weights, each with its name in the model, in order."""
    for name, module in model.get_submodule(block).named_modules(prefix=block):
        if isinstance(module, nn.Linear) and has_plain_weight(module):
            yield name, module


def has_plain_weight(layer: nn.Module) -> bool:
    """Check whether the only parameters of a layer are its weight and, possibly, its bias.

    A weight computed from other tensors (weight_norm, a parametrization) cannot be sliced like a plain one.
    """
    parameters = own_parameters(layer)
    return parameters.get("weight") is not None and {name for name, _ in layer.named_parameters()} <= {
        "weight",
        "bias",
    }


def _join_names(parent: str, child: str) -> str:
    return f"{parent}.{child}" if parent and child else parent or child


def _output_layer(model: nn.Module, block: str, columns: tuple[str, str, str]) -> str | None:
    """Return the first layer after `columns` that maps the total width of the heads to the block's width;
    None if there is none."""
    query = model.get_submodule(columns[0])
    assert isinstance(query, nn.Linear)
    passed = 0
    for name, layer in iter_linears(model, block):
        # Only after all three: another layer of that shape may come before the attention.
        if passed == 3 and (layer.in_features, layer.out_features) == (query.out_features, query.in_features):
            return name
        passed += name in columns
    return None


_HEADS_TEXT = tr_noop(
    "The number of heads of {name}, {heads}, is not divisible by the number of ranks, {num_ranks}."
)
_KEY_VALUE_HEADS_TEXT = tr_noop(
    "The heads of {name} (query: {heads}, key/value: {key_heads}) cannot be split over {num_ranks} ranks."
)


def _head_counts(
    module: nn.Module, name: str, query: nn.Linear, key: nn.Linear, num_ranks: int
) -> tuple[int, tuple[HeadCount, ...]]:
    """Return the number of heads of an attention module, and the module's attributes that depend on it, each
    with its value on one rank."""
    heads = _num_heads(module, query)
    if heads is None:
        raise ModelError(
            phrase(
                "The number of heads of {name} is unknown, so tensor parallelism cannot split it.", name=name
            ),
            path="strategy.use",
            advice=phrase("Add a head_dim or num_heads attribute to the module."),
        )
    # Grouped-query attention has fewer heads of keys and values.
    key_heads = key.out_features * heads // query.out_features
    if heads % num_ranks or key_heads % num_ranks:
        fitting = [str(n) for n in range(1, key_heads + 1) if heads % n == 0 and key_heads % n == 0]
        template = _HEADS_TEXT if heads == key_heads else _KEY_VALUE_HEADS_TEXT
        raise ModelError(
            phrase(template, name=name, heads=heads, key_heads=key_heads, num_ranks=num_ranks),
            code="tensor-heads",
            path="strategy.use",
            advice=phrase(
                "Use {fitting} devices for tensor parallelism, or a different number of heads.",
                fitting=format_choices(fitting),
            ),
        )
    full = dict.fromkeys(HEAD_COUNTS, heads) | dict.fromkeys(KEY_VALUE_COUNTS, key_heads)
    full |= dict.fromkeys(WIDTHS, query.out_features)
    return heads, tuple(
        HeadCount(name, attribute, count // num_ranks)
        for attribute, count in full.items()
        # Only numbers that agree: an attribute of that name may count something else.
        if getattr(module, attribute, None) == count
    )


def _num_heads(module: nn.Module, query: nn.Linear) -> int | None:
    # Hugging Face modules keep some of these numbers in their config only.
    for holder in (module, getattr(module, "config", None)):
        for attribute in (*HEAD_WIDTHS, *HEAD_COUNTS):
            number = getattr(holder, attribute, None)
            if isinstance(number, int) and number > 0 and query.out_features % number == 0:
                return query.out_features // number if attribute in HEAD_WIDTHS else number
    return None


_FUSED_CONV_TEXT = tr_noop(
    "Tensor parallelism splits Linear and Embedding layers, but {name} is a fused Conv1D: "
    "plain slices would mix query, key and value."
)
_FUSED_TEXT = tr_noop(
    "Tensor parallelism splits Linear and Embedding layers, but {name} fuses query, key and "
    "value: plain slices would mix them."
)


def _require_unfused(model: nn.Module) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "Conv1D" or (isinstance(module, nn.MultiheadAttention) and has_packed_projection(module)):
            template = _FUSED_CONV_TEXT if kind == "Conv1D" else _FUSED_TEXT
            raise ModelError(
                phrase(template, name=name),
                code="tensor-plan",
                path="strategy.use",
                advice=phrase(
                    "Use ddp, fsdp or pipeline, or a model with separate query, key and value "
                    "layers (gpt, Llama, BERT)."
                ),
            )


# Feed-forward layers are found by structure: a linear layer that widens and one that narrows again. In a
# transformer block these are the linear layers outside of attention, in the block's order: one or two (up,
# gate) of equal shape, then one back. Without attention, a model whose module order is known (its units, or
# an nn.Sequential) may be a chain: linear, something elementwise, linear.

ELEMENTWISE = (
    nn.ReLU,
    nn.ReLU6,
    nn.LeakyReLU,
    nn.ELU,
    nn.GELU,
    nn.SiLU,
    nn.Mish,
    nn.Tanh,
    nn.Sigmoid,
    nn.Hardswish,
    nn.Softplus,
    nn.Dropout,
    nn.Identity,
)


@dataclass(frozen=True)
class FeedForwardPair:
    """Column-wise layers that share their input, and the row-wise layer after them.

    `width` is the number of features between the column-wise layers and the row-wise layer; `block` is the
    block that contains all of these layers.
    """

    columns: tuple[str, ...]
    row: str
    width: int
    block: str = ""


def feed_forward_pairs(model: nn.Module, blocks: Sequence[str], taken: set[str]) -> list[FeedForwardPair]:
    """Return the pairs in all blocks, formed from the linear layers that are not in `taken`."""
    return [pair for block in blocks for pair in _iter_pairs(model, block, taken)]


def _iter_pairs(model: nn.Module, block: str, taken: set[str]) -> Iterator[FeedForwardPair]:
    left = [(name, layer) for name, layer in iter_linears(model, block) if name not in taken]
    start = 0
    while start < len(left):
        shape = (left[start][1].in_features, left[start][1].out_features)
        end = start + 1
        while end < len(left) and _layer_shape(left[end][1]) == shape and shape[0] != shape[1]:
            end += 1
        if end < len(left) and _layer_shape(left[end][1]) == shape[::-1]:
            yield FeedForwardPair(tuple(name for name, _ in left[start:end]), left[end][0], shape[1], block)
            end += 1
        start = end


def _layer_shape(layer: nn.Linear) -> tuple[int, int]:
    return layer.in_features, layer.out_features


def chain_pairs(model: nn.Module) -> list[FeedForwardPair]:
    """Return pairs of consecutive linear layers with only elementwise modules between them.

    The list is empty if the order of the model's modules is unknown.
    """
    pairs = []
    column: tuple[str, nn.Linear] | None = None
    for name, module in _leaves_in_order(model):
        if isinstance(module, nn.Linear) and has_plain_weight(module):
            if column is not None and column[1].out_features == module.in_features:
                pairs.append(FeedForwardPair((column[0],), name, module.in_features))
                column = None
            else:
                column = (name, module)
        elif not isinstance(module, ELEMENTWISE):
            column = None
    return pairs


def _leaves_in_order(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the leaf modules in forward order; yield none if that order is unknown."""
    units = getattr(model, "pipeline_units", None)
    if callable(units):
        roots: list[tuple[str, nn.Module]] = units()
    elif isinstance(model, nn.Sequential):
        roots = list(model.named_children())
    else:
        return
    for prefix, root in roots:
        for name, module in root.named_modules(prefix=prefix):
            if not any(True for _ in module.children()):
                yield name, module
