"""Rota in a Django project: `INSTALLED_APPS = ["rota.integrations.django"]`.

`app` is the project's one Rota, made from its settings when it is first asked for: `from rota.integrations.django import app`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rota.integrations.django.project import DjangoRota

    app: DjangoRota

__all__ = ["app"]


def __getattr__(name: str) -> Any:
    # not at import: Django imports this package before its settings may be read
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from rota.integrations.django.project import project_app

    return project_app()
