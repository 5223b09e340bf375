"""OpenAPI documents."""

from __future__ import annotations

from mig_manager.simulation.objects import Object


def openapi(path: str) -> Object | None:
    """The document at a path, or None."""
    return None
