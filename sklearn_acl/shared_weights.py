"""A second estimator around the parts of a fitted one, with parameters of its own."""

import copy


def sharing_weights(estimator):
    """A second estimator around the same fitted parts, for other exit parameters.

    `copy.copy` would do for most classes; those that define how they are pickled would
    copy their weights.
    """
    twin = type(estimator).__new__(type(estimator))
    vars(twin).update(vars(estimator))
    vars(twin).pop("_trains_now", None)  # made by a callback: the twin does not train
    return twin


def sharing_encoder(estimator):
    """A second estimator around the same encoder, with exits of its own.

    Temperatures that one of the two gets later do not reach the other; training one of
    them does, since the encoder is the same. Estimators without a network, and modules
    without `heads`, share all that they have.
    """
    import torch

    twin = sharing_weights(estimator)
    module = vars(estimator).get("module_")
    if isinstance(getattr(module, "heads", None), torch.nn.Module):
        own = copy.copy(module)
        own._modules = dict(module._modules)
        # a caller's inference mode would make heads that never train again
        with torch.inference_mode(False):
            own.heads = copy.deepcopy(module.heads)
        vars(twin)["module_"] = own  # past skorch, which watches who sets modules
    return twin
