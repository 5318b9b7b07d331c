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
    health.router,
    metrics.router,
    models.router,
    completions.router,
    chat.router,
    responses.router,
    messages.router,
    tokenize.router,
    embeddings.router,
    view.router,
    page.router,
)
