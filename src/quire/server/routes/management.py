"""What an operator may do to a running server. Registered only with --enable-management, which needs an API key."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException, Request

from quire.server.serving import require_ready

router = APIRouter()


@router.post("/reset_prefix_cache")
async def reset_prefix_cache(request: Request) -> dict[str, bool]:
    """Forget all cached KV blocks; 409 while sequences run."""
    state = await require_ready(request)
    if not await state.llm.reset_prefix_cache():
        raise HTTPException(409, "Sequences run and use the cache; try again when none do.")
    return {"success": True}
