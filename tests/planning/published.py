"""What NVIDIA publishes of each model: its profiles by name, how many of each fit, and layouts that mix them.

Written down by hand from the MIG User Guide ("Supported MIG Profiles") and from the layouts that
NVIDIA/mig-parted ships, and not from the catalogue, so that either can show a mistake in the other.
"""

from __future__ import annotations

from collections.abc import Iterator

_EIGHTHS = (("1g", 7), ("1g+me", 1), ("wide", 4), ("2g", 3), ("3g", 2), ("4g", 1), ("7g", 1))
_EIGHTHS_MIXED = (
    "4g 3g",
    "4g 2g 1g",
    "4g 1g 1g 1g",
    "3g 2g 2g",
    "3g 2g 1g 1g",
    "3g 1g 1g 1g 1g",
    "2g 2g 2g 1g",
    "2g 2g 1g 1g 1g",
    "2g 1g 1g 1g 1g 1g",
    "3g wide 2g",
    "3g 2g 1g+me",
    "4g 1g+me",
)
"""The largest mixes of plain profiles on a GPU of eight memory and seven compute slices, and some with variants."""
_QUARTERS = (("1g", 4), ("1g+me", 1), ("2g", 2), ("2g+me", 1), ("4g", 1))
_QUARTERS_MIXED = ("2g 1g 1g", "2g 1g 1g+me", "2g+me 1g 1g", "2g 2g+me")
_TWELFTHS = (
    ("1g", 4),
    ("1g+me", 1),
    ("1g+gfx", 4),
    ("1g+me.all", 1),
    ("1g-me", 4),
    ("2g", 2),
    ("2g+gfx", 2),
    ("2g+me.all", 1),
    ("2g-me", 2),
    ("4g", 1),
    ("4g+gfx", 1),
)
_TWELFTHS_MIXED = (
    "2g 1g 1g",
    "2g 1g 1g+me",
    "2g+gfx 1g+gfx 1g+gfx",
    "2g+me.all 1g-me 1g-me",
    "1g+me.all 1g-me 1g-me 1g-me",
    "1g+me.all 2g-me 1g-me",
)
_HALVES = (("1g", 2), ("1g+me", 1), ("1g+gfx", 2), ("1g+me.all", 1), ("1g-me", 2), ("2g", 1), ("2g+gfx", 1))
_HALVES_MIXED = ("1g+me.all 1g-me", "1g 1g+gfx")

_MODELS = {
    "A30": "1g.6gb 1g.6gb+me 2g.12gb 2g.12gb+me 4g.24gb",
    "A100-SXM4-40GB": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "A100-PCIE-40GB": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "A100-SXM4-80GB": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "A100 80GB PCIe": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "A800-SXM4-40GB": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "A800 40GB Active": "1g.5gb 1g.5gb+me 1g.10gb 2g.10gb 3g.20gb 4g.20gb 7g.40gb",
    "A800-SXM4-80GB": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "A800 80GB PCIe": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "A800 80GB PCIe LC": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H100 80GB HBM3": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H100 PCIe": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H100 NVL": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    "H100 94GB": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    "H100 96GB": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "H800": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H800 PCIe": "1g.10gb 1g.10gb+me 1g.20gb 2g.20gb 3g.40gb 4g.40gb 7g.80gb",
    "H800 NVL": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.47gb 4g.47gb 7g.94gb",
    "GH200 480GB": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "GH200 120GB": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "GH200 144G HBM3e": "1g.18gb 1g.18gb+me 1g.36gb 2g.36gb 3g.72gb 4g.72gb 7g.144gb",
    "H200": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "H200 NVL": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "H20": "1g.12gb 1g.12gb+me 1g.24gb 2g.24gb 3g.48gb 4g.48gb 7g.96gb",
    "H20-3e": "1g.18gb 1g.18gb+me 1g.35gb 2g.35gb 3g.71gb 4g.71gb 7g.141gb",
    "B200": "1g.23gb 1g.23gb+me 1g.45gb 2g.45gb 3g.90gb 4g.90gb 7g.180gb",
    "GB200": "1g.23gb 1g.23gb+me 1g.47gb 2g.47gb 3g.93gb 4g.93gb 7g.186gb",
    "B300 SXM6 AC": "1g.34gb 1g.34gb+me 1g.67gb 2g.67gb 3g.135gb 4g.135gb 7g.269gb",
    "GB300": "1g.35gb 1g.35gb+me 1g.70gb 2g.70gb 3g.139gb 4g.139gb 7g.278gb",
    **dict.fromkeys(
        (
            "RTX PRO 6000 Blackwell Server Edition",
            "RTX PRO 6000 Blackwell Workstation Edition",
            "RTX PRO 6000 Blackwell Max-Q Workstation Edition",
        ),
        "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx 2g.48gb+me.all 2g.48gb-me"
        " 4g.96gb 4g.96gb+gfx",
    ),
    "RTX PRO 5000 Blackwell": "1g.24gb 1g.24gb+me 1g.24gb+gfx 1g.24gb+me.all 1g.24gb-me 2g.48gb 2g.48gb+gfx",
    "RTX PRO 4500 Blackwell": "1g.16gb 1g.16gb+gfx 1g.16gb+me.all 1g.16gb-me 2g.32gb 2g.32gb+gfx",
}
"""By title: the profiles, in the order of the table of counts."""


def models() -> tuple[str, ...]:
    """The titles of all models with MIG."""
    return tuple(_MODELS)


def counts(model: str) -> dict[str, int]:
    """How many instances of each profile fit, by the profile's name."""
    table, _ = _family(model)
    names = _names(model)
    return {names[kind]: most for kind, most in table if kind in names}


def layouts(model: str) -> Iterator[tuple[str, ...]]:
    """Layouts by the names of their instances: each profile as often as it fits, then mixes."""
    for name, most in counts(model).items():
        yield (name,) * most
    names = _names(model)
    for mix in _family(model)[1]:
        yield tuple(names[kind] for kind in mix.split())


def _family(model: str) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    largest = _MODELS[model].split()[-1]
    if largest.startswith("7g"):
        return _EIGHTHS, _EIGHTHS_MIXED
    if largest.startswith("2g"):
        return _HALVES, _HALVES_MIXED
    return (_TWELFTHS, _TWELFTHS_MIXED) if largest.endswith("gfx") else (_QUARTERS, _QUARTERS_MIXED)


def _names(model: str) -> dict[str, str]:
    """The profiles of a model by their kind, such as `2g+me`; `wide` is one slice with the memory of two."""
    names: dict[str, str] = {}
    for name in _MODELS[model].split():
        size, _, tail = name.partition("gb")
        kind = size.split(".")[0] + tail
        names["wide" if kind in names else kind] = name
    return names
