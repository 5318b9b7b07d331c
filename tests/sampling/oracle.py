"""Sampling the slow, obvious way: float64, Python loops over the vocabulary, one row, straight from the definitions."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

from quire.core.sampling_params import SamplingParams

Distribution = list[float]


def processed_logits(
    logits: Sequence[float],
    params: SamplingParams,
    token_ids: Sequence[int],
    num_prompt_tokens: int,
    stop_token_ids: Collection[int],
) -> list[float]:
    prompt, output = list(token_ids[:num_prompt_tokens]), list(token_ids[num_prompt_tokens:])
    result = list(logits)
    for token_id in range(len(result)):
        allowed = params.allowed_token_ids is None or token_id in params.allowed_token_ids
        completes_bad_word = any(
            word[-1] == token_id and output[len(output) - len(word) + 1 :] == list(word[:-1])
            for word in params.bad_words_token_ids
            if len(word) - 1 <= len(output)
        )
        too_early = token_id in stop_token_ids and len(output) < params.min_tokens
        if not allowed or completes_bad_word or too_early:
            result[token_id] = -math.inf
        result[token_id] += (params.logit_bias or {}).get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            factor = params.repetition_penalty
            result[token_id] = result[token_id] / factor if result[token_id] > 0 else result[token_id] * factor
        result[token_id] -= params.frequency_penalty * output.count(token_id)
        result[token_id] -= params.presence_penalty * (token_id in output)
    return result


def distribution(processed: Sequence[float], params: SamplingParams) -> Distribution:
    """The exact probabilities a token is drawn from. Temperature, then top-k and min-p, then top-p."""
    largest = max(processed)
    if params.greedy:
        first = list(processed).index(largest)
        return [1.0 if token_id == first else 0.0 for token_id in range(len(processed))]
    weights = [math.exp((logit - largest) / params.temperature) for logit in processed]
    order = sorted(range(len(weights)), key=lambda token_id: (-weights[token_id], token_id))
    if params.top_k > 0:
        order = order[: params.top_k]
    order = [token_id for token_id in order if weights[token_id] >= params.min_p * max(weights)]
    if params.top_p < 1:
        total = math.fsum(weights[token_id] for token_id in order)
        nucleus: list[int] = []
        for token_id in order:
            if math.fsum(weights[kept] for kept in nucleus) >= params.top_p * total:
                break
            nucleus.append(token_id)
        order = nucleus
    total = math.fsum(weights[token_id] for token_id in order)
    return [weights[token_id] / total if token_id in order else 0.0 for token_id in range(len(weights))]


def nearest_border(processed: Sequence[float], params: SamplingParams, uniform: float) -> float:
    """How far the decision is from one that rounding could turn: in top-p's cut, min-p's cut, or the draw."""
    if params.greedy:
        return 1.0
    uncut = SamplingParams(temperature=params.temperature, top_k=params.top_k, min_p=params.min_p)
    descending = sorted(distribution(processed, uncut), reverse=True)
    distances = [abs(math.fsum(descending[: i + 1]) - params.top_p) for i in range(len(descending))]
    if params.top_p == 1:
        distances = [1.0]
    free = distribution(processed, SamplingParams(temperature=params.temperature))
    distances += [abs(p / max(free) - params.min_p) for p in free if params.min_p > 0 and p < max(free)]
    final = distribution(processed, params)
    distances += [abs(math.fsum(final[: i + 1]) - uniform) for i in range(len(final) - 1)]
    return min(distances)


def draw(final: Distribution, uniform: float) -> int:
    """The first token whose cumulative probability exceeds `uniform`."""
    return next(i for i in range(len(final)) if math.fsum(final[: i + 1]) > uniform)


def logprobs(logits: Sequence[float]) -> list[float]:
    largest = max(logits)
    log_total = largest + math.log(math.fsum(math.exp(logit - largest) for logit in logits))
    return [logit - log_total for logit in logits]


def ranking(logits: Sequence[float]) -> list[int]:
    """Token ids, most likely first, equal ones by lowest id."""
    return sorted(range(len(logits)), key=lambda token_id: (-logits[token_id], token_id))
