"""`/v1/responses`: OpenAI's newer shape of a chat, which the server can remember for the client."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from fastapi import HTTPException, Query, Request, Response

from quire.errors import InvalidRequestError
from quire.server.answering import chat_params, respond
from quire.server.chat_turn import ChatTurn, Conversation, room_for_prompt, take_turn
from quire.server.response_store import StoredResponse
from quire.server.response_writer import ResponseWriter, new_id
from quire.server.schemas.fields import MAX_NAME_LENGTH, template_kwargs
from quire.server.schemas.openapi import answers
from quire.server.schemas.response_answers import (
    DeletedResponse,
    InputItems,
    InputTokens,
    ResponseAnswer,
)
from quire.server.schemas.responses import (
    KEPT_ITEM,
    FunctionCallItem,
    FunctionCallOutputItem,
    InputItem,
    Item,
    ItemReference,
    MessageItem,
    ReasoningConfig,
    ReasoningItem,
    ResponsesRequest,
    as_messages,
)
from quire.server.serving import client_of, json_response, preparing, prompt_named, require_ready
from quire.server.state import ServerState, server_state
from quire.server.strict_json import json_router
from quire.server.tools.definitions import parse_tool_choice, parse_tools

router = json_router()

ID_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
MAX_PAGE = 100


@router.post("/v1/responses", responses=answers(ResponseAnswer, streams=True))
async def create_response(body: ResponsesRequest, request: Request) -> Response:
    state = await require_ready(request, body.model)
    body.check()
    owner, stores = _owner(request), _stores(state, body)
    history, items = _history(state, owner, body.previous_response_id), _resolved(state, owner, body.items)
    conversation = _conversation(body, history, items)
    with preparing(request), prompt_named("input"):
        if body.truncation == "auto":
            turn = await _fitting_turn(state, conversation, body.max_output_tokens)
        else:
            turn = await take_turn(state, conversation, must_fit=True)
    turn = turn.structured(body.wanted_structure())
    params = chat_params(state, body, turn, max_tokens=body.max_output_tokens)
    used = (*history, *(msgspec.json.encode(_listed(item)) for item in items)) if stores else ()
    keep = partial(_keep, state, owner, used) if stores else None
    response = _response(state, body, conversation, stores=stores)
    writer = ResponseWriter(state.llm.tokenizer, turn, response, keep)
    return await respond(request, body, {"input": turn.prompt}, params, writer, structure_field=turn.structure_field)


@router.post("/v1/responses/input_tokens", responses=answers(InputTokens))
async def count_input_tokens(body: ResponsesRequest, request: Request) -> Response:
    """Of the prompt that a response to the same body would answer, cached or not."""
    state = await require_ready(request, body.model)
    body.check()
    owner = _owner(request)
    history, items = _history(state, owner, body.previous_response_id), _resolved(state, owner, body.items)
    with preparing(request), prompt_named("input"):
        turn = await take_turn(state, _conversation(body, history, items))
    return json_response(InputTokens(len(turn.token_ids)))


@router.get("/v1/responses/{response_id}", responses=answers(ResponseAnswer))
async def get_response(
    response_id: str, request: Request, stream: Annotated[bool, Query(include_in_schema=False)] = False
) -> Response:
    if stream:
        raise InvalidRequestError(
            "stream is not supported here: a response is kept once it is whole; leave it out.", field="stream"
        )
    return Response(_stored(request, response_id).answer, media_type="application/json")


@router.delete("/v1/responses/{response_id}", responses=answers(DeletedResponse))
async def delete_response(response_id: str, request: Request) -> Response:
    _stored(request, response_id)
    server_state(request).responses.delete(_owner(request), response_id)
    return json_response(DeletedResponse(response_id))


@router.get("/v1/responses/{response_id}/input_items", responses=answers(InputItems))
async def list_input_items(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: Annotated[str | None, Query(max_length=MAX_NAME_LENGTH)] = None,
) -> Response:
    """What the response was an answer to, responses before it included; the newest first if not told otherwise."""
    items: list[dict[str, Any]] = [msgspec.json.decode(item) for item in _stored(request, response_id).input_items]
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise HTTPException(404, f"after is {after!r:.100}, which is none of the items.")
    start = 0 if after is None else ids.index(after) + 1
    page = items[start : start + limit]
    return json_response(
        InputItems(
            data=page,
            first_id=page[0]["id"] if page else "",
            last_id=page[-1]["id"] if page else "",
            has_more=start + limit < len(items),
        )
    )


def _owner(request: Request) -> str:
    """Whose a response is: that of the API key. Where none is needed everybody is one."""
    return client_of(request) if server_state(request).config.api_key else ""


def _keeps_responses(state: ServerState) -> bool:
    """Each API process has its own memory, and the next request may come to another."""
    return state.config.api_workers == 1


def _require_keeping(state: ServerState, remedy: str, field: str, value: object) -> None:
    if not _keeps_responses(state):
        raise InvalidRequestError(
            f"This server keeps no responses, since it runs {state.config.api_workers} API workers without common"
            f" memory; {remedy}, or start it with --api-workers 1.",
            field=field,
            value=value,
        )


def _stores(state: ServerState, body: ResponsesRequest) -> bool:
    if body.store:
        _require_keeping(state, "set store to false", "store", True)
    return body.store is not False and _keeps_responses(state)


def _history(state: ServerState, owner: str, previous_response_id: str | None) -> tuple[bytes, ...]:
    """The items of the conversation so far."""
    if previous_response_id is None:
        return ()
    _require_keeping(state, "send the earlier items in input", "previous_response_id", previous_response_id)
    previous = state.responses.get(owner, previous_response_id)
    if previous is None:
        raise InvalidRequestError(
            f"previous_response_id is {previous_response_id!r:.100}, and there is no such response (any more): it was not"
            " stored, was deleted, or others took its place; send the earlier items in input.",
            field="previous_response_id",
            value=previous_response_id,
        )
    return previous.items


def _resolved(state: ServerState, owner: str, items: Sequence[InputItem]) -> list[Item]:
    """References become the items they stand for."""
    found = state.responses.find_items(owner, {item.id for item in items if isinstance(item, ItemReference)})
    for index, item in enumerate(items):
        if isinstance(item, ItemReference) and item.id not in found:
            raise InvalidRequestError(
                f"input.{index} refers to {item.id!r:.100}, and no response that is kept here has such an item (any more);"
                " send the item itself.",
                field=f"input.{index}",
                value=item.id,
            )
    kept = {item_id: KEPT_ITEM.validate_json(item) for item_id, item in found.items()}
    return [kept[item.id] if isinstance(item, ItemReference) else item for item in items]


def _stored(request: Request, response_id: str) -> StoredResponse:
    """Raises 404."""
    state = server_state(request)
    response = state.responses.get(_owner(request), response_id)
    if response is None:
        reason = "" if _keeps_responses(state) else ": a server with several API workers keeps none"
        raise HTTPException(404, f"There is no response {response_id!r:.100} here{reason}.")
    return response


def _keep(state: ServerState, owner: str, used: tuple[bytes, ...], response: ResponseAnswer) -> None:
    made = {item.id: msgspec.json.encode(item) for item in response.output}
    state.responses.put(owner, response.id, StoredResponse(msgspec.json.encode(response), used, made))


def _conversation(body: ResponsesRequest, history: Sequence[bytes], items: Sequence[Item]) -> Conversation:
    earlier = [KEPT_ITEM.validate_json(item) for item in history]
    tools = parse_tools(body.tools, functions_only=True)
    effort = None if body.reasoning is None else body.reasoning.effort
    return Conversation(
        messages=as_messages(body.instructions, [*earlier, *items]),
        tools=tools,
        choice=parse_tool_choice(body.tool_choice, tools),
        parallel=body.parallel_tool_calls is not False,
        chat_template_kwargs=template_kwargs(effort, body.chat_template_kwargs),
    )


async def _fitting_turn(state: ServerState, conversation: Conversation, max_tokens: int | None) -> ChatTurn:
    """The turn without as many of the oldest messages as makes it fit; instructions and the user's last message stay.

    What is kept begins with a message of the user: many templates refuse another, and no result is without its call.
    An answer of `max_tokens` fits as well, if it takes no more than half of the context.
    """
    room = room_for_prompt(state, max_tokens)
    messages = conversation.messages
    roles = [message["role"] for message in messages]
    num_fixed = next((number for number, role in enumerate(roles) if role not in ("system", "developer")), 0)
    starts = [number for number, role in enumerate(roles) if role == "user" and number > num_fixed]
    turn = await take_turn(state, conversation)
    if len(turn.token_ids) <= room or not starts:
        return turn
    too_few, enough = -1, len(starts) - 1
    while too_few + 1 < enough:
        middle = (too_few + enough) // 2
        turn = await take_turn(state, _from(conversation, num_fixed, starts[middle]))
        too_few, enough = (too_few, middle) if len(turn.token_ids) <= room else (middle, enough)
    return await take_turn(state, _from(conversation, num_fixed, starts[enough]))


def _from(conversation: Conversation, num_fixed: int, start: int) -> Conversation:
    return replace(conversation, messages=[*conversation.messages[:num_fixed], *conversation.messages[start:]])


def _response(
    state: ServerState, body: ResponsesRequest, conversation: Conversation, *, stores: bool
) -> ResponseAnswer:
    """As it is when it begins."""
    text = {} if body.text is None else body.text.model_dump(by_alias=True, exclude_none=True)
    tools = [
        {"type": "function", **tool.as_template_input()["function"], "strict": tool.strict}
        for tool in conversation.tools
    ]
    reasoning = body.reasoning or ReasoningConfig.model_validate({})
    return ResponseAnswer(
        id=new_id("resp"),
        created_at=int(time.time()),
        model=state.model_name,
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        metadata=body.metadata or {},
        parallel_tool_calls=conversation.parallel,
        previous_response_id=body.previous_response_id,
        reasoning={"effort": reasoning.effort, "summary": reasoning.summary},
        store=stores,
        temperature=1.0 if body.temperature is None else body.temperature,
        text={"format": {"type": "text"}, **text},
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=tools,
        top_p=1.0 if body.top_p is None else body.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _listed(item: MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem) -> dict[str, Any]:
    """An input item as it is kept and listed: with an id, and a message's content as parts."""
    kind = item.type or "message"
    fields = {"type": kind, "id": item.id or new_id(ID_PREFIXES[kind]), **item.model_dump(exclude_none=True)}
    if isinstance(item, MessageItem):
        fields["status"] = "completed"
        if isinstance(item.content, str):
            form = "output_text" if item.role == "assistant" else "input_text"
            fields["content"] = [{"type": form, "text": item.content}]
    return fields
