"""The routes, a module a group. A new group is a file and a line here."""

from __future__ import annotations

from fastapi import APIRouter

from quire.server.routes import (
    chat,
    completions,
    embeddings,
    health,
    messages,
    metrics,
    models,
    page,
    responses,
    tokenize,
    view,
)

ROUTERS: tuple[APIRouter, ...] = (
    # Searched in this order: the busiest first.
    chat.router,
    completions.router,
    health.router,
    metrics.router,
    models.router,
    responses.router,
    messages.router,
    tokenize.router,
    embeddings.router,
    view.router,
    page.router,
)
