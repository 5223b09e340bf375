"""Credentials and connections."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mig_manager.cluster.refusal import ApiError

if TYPE_CHECKING:
    import urllib3
    from kubernetes.client import Configuration

_CONNECTIONS = 32
_SHAPE = "it is none; a kubeconfig has clusters, users and contexts"


def unusable() -> tuple[type[Exception], ...]:
    """What the official client raises where credentials cannot be read, or make no sense."""
    import yaml
    from kubernetes.config import ConfigException

    return (ConfigException, OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError)


def usual_kubeconfig() -> str:
    """Where kubectl looks; the official client would keep to what KUBECONFIG was when it was loaded."""
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


class Credentials(Protocol):
    """Where it is written who we are."""

    def load(self, configuration: Configuration) -> None:
        """Read them. Raises whatever the official client raises where they cannot be used."""
        ...


@dataclass(frozen=True, slots=True)
class ServiceAccount:
    """Those of a pod."""

    folder: Path
    """Holds `token` and `ca.crt`."""

    def load(self, configuration: Configuration) -> None:
        """Read them."""
        from kubernetes.config.incluster_config import InClusterConfigLoader

        token, authority = str(self.folder / "token"), str(self.folder / "ca.crt")
        InClusterConfigLoader(token_filename=token, cert_filename=authority).load_and_set(  # type: ignore[no-untyped-call]
            configuration
        )

    def __str__(self) -> str:
        return "the service account of this pod"


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Those of a user."""

    file: Path | None
    """None: where kubectl looks, the files of KUBECONFIG together, else ~/.kube/config."""
    context: str | None = None
    """None: its current one."""

    def load(self, configuration: Configuration) -> None:
        """Read them."""
        from kubernetes.config.kube_config import load_kube_config

        load_kube_config(  # type: ignore[no-untyped-call]
            usual_kubeconfig() if self.file is None else str(self.file),
            context=self.context,
            client_configuration=configuration,
            persist_config=False,
        )

    def __str__(self) -> str:
        named = f" {self.file}" if self.file is not None else " of $KUBECONFIG or ~/.kube/config"
        return f"the kubeconfig{named}" + (f", context {self.context}" if self.context else "")


class Session:
    """The credentials as they were read at one time, and connections that use them."""

    def __init__(self, source: Credentials) -> None:
        from kubernetes.client import ApiClient, Configuration

        self._configuration = Configuration()
        self._configuration.connection_pool_maxsize = _CONNECTIONS
        try:
            source.load(self._configuration)
        except unusable() as error:
            # Python's words on a file of another shape tell nobody anything.
            shapeless = isinstance(error, (TypeError, AttributeError, KeyError))
            words = _SHAPE if shapeless else " ".join(str(error).split())
            raise ApiError(f"No access to the API server by {source}: {words}") from error
        self.host: str = self._configuration.host.rstrip("/")
        self.pool: urllib3.PoolManager = ApiClient(self._configuration).rest_client.pool_manager

    def credentials(self) -> dict[str, str]:
        """The headers that say who we are; a service account's token is read again once a minute."""
        bearer = self._configuration.auth_settings().get("BearerToken")
        headers = {"User-Agent": "mig-manager"}
        if bearer is not None and bearer["value"]:
            headers["Authorization"] = bearer["value"].strip()
        return headers

    def close(self) -> None:
        """Give back the idle connections."""
        self.pool.clear()
