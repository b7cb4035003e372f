"""skorch callbacks that the classifier installs by default."""

import sys
import traceback

import tqdm
from skorch.callbacks import Callback, EarlyStopping, LRScheduler, ProgressBar
from torch.optim.lr_scheduler import LambdaLR


class LinearDecay:
    """Factor of the learning rate: linear warm-up, then linear decay to zero.

    Parameters
    ----------
    n_steps : int
        Optimizer steps of the whole training.
    warmup : float
        Share of the steps over which the rate rises from near zero to its full
        value, in [0, 1].
    """

    def __init__(self, n_steps, warmup):
        self.n_steps = n_steps
        self.n_warmup = int(round(warmup * n_steps))

    def __call__(self, step):
        if step < self.n_warmup:
            return (step + 1) / (self.n_warmup + 1)
        return max(0.0, (self.n_steps - step) / max(1, self.n_steps - self.n_warmup))


class WarmupScheduler(LRScheduler):
    """skorch's `LRScheduler`, stepped per batch, told the number of steps at start.

    Parameters
    ----------
    warmup : float, default=0.1
        Share of the steps spent warming up.
    decay : {"linear", "constant"}, default="linear"
        What follows the warm-up.
    """

    def __init__(self, warmup=0.1, decay="linear"):
        super().__init__(policy=LambdaLR, step_every="batch", event_name=None)
        self.warmup = warmup
        self.decay = decay

    def on_train_begin(self, net, X=None, **kwargs):
        constant = self.decay == "constant" or X.constant_lr
        factor = constant_factor if constant else LinearDecay(X.n_steps, self.warmup)
        self.lr_scheduler_ = LambdaLR(net.optimizer_, factor)

    def on_train_end(self, net, **kwargs):
        self.lr_scheduler_ = None  # it holds the optimizer, which holds two copies


def constant_factor(step):
    """Learning-rate factor of a training without a schedule."""
    return 1.0


class BatchProgressBar(ProgressBar):
    """skorch's progress bar, absent with `verbose=0` and outside a terminal."""

    def on_epoch_begin(self, net, **kwargs):
        super_tqdm = net.verbose and (self._use_notebook() or sys.stderr.isatty())
        if super_tqdm:
            super().on_epoch_begin(net, **kwargs)
        else:
            self.pbar_ = tqdm.tqdm(disable=True)


def raised_by_callback(error):
    """Whether a callback raised an error itself, as `EarlyStopping` does to stop."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return isinstance(frame.f_locals.get("self"), Callback)


def release_training_state(callbacks):
    """Drop what callbacks keep of the training: schedulers and copies of weights."""
    for _, callback in callbacks:
        if isinstance(callback, LRScheduler):
            callback.lr_scheduler_ = None
        elif isinstance(callback, EarlyStopping):
            callback.best_model_weights_ = None
