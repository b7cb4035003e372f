"""What the optimizer is given: parameter groups and mixed precision."""

import fnmatch

import torch

HEAD_PREFIX = "heads."


def parameter_groups(named_parameters, *, lr, head_lr_factor, user_groups=()):
    """Split parameters into encoder and heads, with and without weight decay.

    Biases and normalisation weights (every parameter of one dimension) are not
    decayed; the heads learn `head_lr_factor` times as fast as the encoder.

    Parameters
    ----------
    named_parameters : iterable of (str, Parameter)
        Parameters without `requires_grad` are left out.
    lr : float
        Learning rate of the encoder.
    head_lr_factor : float
        Multiple of `lr` for the heads.
    user_groups : iterable of (str, dict), default=()
        skorch's `optimizer__param_groups`: name pattern and settings; what they
        match is taken out of the default groups.

    Returns
    -------
    groups : list of dict
        As `torch.optim` takes them; empty groups are left out.
    """
    remaining = [(n, p) for n, p in named_parameters if p.requires_grad]
    groups = []
    for pattern, settings in user_groups:
        matched = [p for n, p in remaining if fnmatch.fnmatch(n, pattern)]
        remaining = [(n, p) for n, p in remaining if not fnmatch.fnmatch(n, pattern)]
        groups.append({"params": matched, **settings})
    for in_head, rate in ((False, lr), (True, lr * head_lr_factor)):
        part = [p for n, p in remaining if n.startswith(HEAD_PREFIX) == in_head]
        decayed = [p for p in part if p.ndim >= 2]
        plain = [p for p in part if p.ndim < 2]
        groups.append({"params": decayed, "lr": rate})
        groups.append({"params": plain, "lr": rate, "weight_decay": 0.0})
    return [group for group in groups if group["params"]]


def with_fast_kernel(optimizer, settings):
    """Settings of an optimizer; AdamW is fused unless they choose another kernel.

    Parameters
    ----------
    optimizer : type
    settings : dict

    Returns
    -------
    settings : dict
        A fused AdamW is several times as fast on a CPU.
    """
    # AdamW refuses both together
    is_free = optimizer is torch.optim.AdamW and not settings.get("foreach")
    return {"fused": True, **settings} if is_free else settings


def autocast_dtype(mixed_precision, device):
    """Type that training computes in, or None for plain fp32.

    Parameters
    ----------
    mixed_precision : {"auto", "bf16", "fp16", None}
        "auto" is bf16 on a CUDA device that has it, fp16 on an older one, and
        fp32 elsewhere.
    device : torch.device
        Where the training runs.
    """
    if mixed_precision == "auto":
        if device.type != "cuda":
            return None
        return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16
    return {None: None, "bf16": torch.bfloat16, "fp16": torch.float16}[mixed_precision]
