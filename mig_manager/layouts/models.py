"""Product names of GPUs: what counts as the same name."""

from __future__ import annotations

import re
from functools import lru_cache

_BRANDS = ("nvidia", "tesla")


@lru_cache(maxsize=1024)
def model_words(name: str) -> tuple[str, ...]:
    """The words of a product name in lower case, without the brand: `a100`, `sxm4`, `80gb`."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    while len(words) > 1 and words[0] in _BRANDS:
        del words[0]
    return tuple(words)


def same_model(written: str, reported: str) -> bool:
    """Whether two product names mean the same GPU model.

    Case, spaces, dashes, the order of the words and a leading `NVIDIA` or `Tesla` do not matter:
    `A100-SXM4-80GB` is `NVIDIA A100-SXM4-80GB`, `a100-pcie-80gb` is `NVIDIA A100 80GB PCIe`.
    """
    left, right = model_words(written), model_words(reported)
    return "".join(left) == "".join(right) or sorted(left) == sorted(right)
