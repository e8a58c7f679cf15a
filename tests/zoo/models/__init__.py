"""Small models by family, in plain torch: importing this registers all of them."""

from tests.zoo.models import (  # noqa: F401
    adapted,
    experts,
    generative,
    graphs,
    language,
    normalised,
    outputs,
    plain,
    roots,
    sequences,
    split,
    stateful,
    unusual,
    vision,
)
