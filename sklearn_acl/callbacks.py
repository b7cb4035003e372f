"""skorch callbacks that the classifier installs by default."""

import math
import sys
import traceback

import tqdm
from skorch.callbacks import (
    Callback,
    EarlyStopping,
    LRScheduler,
    PrintLog,
    ProgressBar,
)
from torch.optim.lr_scheduler import LambdaLR


class WarmupDecay:
    """Factor of the learning rate: linear warm-up, then linear decay or none.

    Parameters
    ----------
    n_steps : int
        Optimizer steps of the training, or of one stage of it.
    warmup : float
        Share of the steps over which the rate rises from near zero to its full
        value, in [0, 1].
    decay : {"linear", "constant"}
        "linear" falls to zero at the last step.
    """

    def __init__(self, n_steps, warmup, decay):
        self.n_steps = n_steps
        self.n_warmup = int(round(warmup * n_steps))
        self.decay = decay

    def __call__(self, step):
        if step < self.n_warmup:
            return (step + 1) / (self.n_warmup + 1)
        if self.decay == "constant":
            return 1.0
        return max(0.0, (self.n_steps - step) / max(1, self.n_steps - self.n_warmup))


class WarmupScheduler(LRScheduler):
    """skorch's `LRScheduler`, stepped per batch, told the number of steps at start.

    Parameters
    ----------
    warmup : float, default=0.1
        Share of the steps spent warming up; `partial_fit` has no warm-up.
    decay : {"linear", "constant"}, default="linear"
        What follows the warm-up.
    """

    def __init__(self, warmup=0.1, decay="linear"):
        super().__init__(policy=LambdaLR, step_every="batch", event_name=None)
        self.warmup = warmup
        self.decay = decay

    def on_train_begin(self, net, X=None, **kwargs):
        shape = (0.0, "constant") if X.constant_lr else (self.warmup, self.decay)
        self.lr_scheduler_ = LambdaLR(net.optimizer_, WarmupDecay(X.n_steps, *shape))

    def on_train_end(self, net, **kwargs):
        self.lr_scheduler_ = None  # it holds the optimizer, which holds two copies


class BatchProgressBar(ProgressBar):
    """skorch's progress bar, absent with `verbose=0` and outside a terminal."""

    def on_epoch_begin(self, net, **kwargs):
        # a program without a console has no stderr, and one of its own no isatty
        is_terminal = getattr(sys.stderr, "isatty", bool)()
        if net.verbose and (self._use_notebook() or is_terminal):
            super().on_epoch_begin(net, **kwargs)
        else:
            self.pbar_ = tqdm.tqdm(disable=True)


class EpochLog(PrintLog):
    """skorch's line per epoch, absent where a program has no standard output."""

    def on_epoch_end(self, net, **kwargs):
        if sys.stdout is not None:
            super().on_epoch_end(net, **kwargs)


#: What only a validation part puts into the history.
_FROM_VALIDATION = ("valid_loss", "valid_acc", "valid_loss_best", "valid_acc_best")


def check_monitored(callbacks):
    """Raise for callbacks that monitor what a training without validation lacks."""
    for name, callback in callbacks:
        monitor = getattr(callback, "monitor", None)
        if isinstance(monitor, str) and monitor in _FROM_VALIDATION:
            raise ValueError(
                f"The callback {name!r} monitors {monitor!r}, but nothing is "
                "validated: pass train_split=skorch.dataset.ValidSplit(5) or "
                "fit(validation_data=(X, y)), or monitor 'train_loss'. partial_fit "
                "never validates."
            )


def forget_best_scores(callbacks):
    """Let the scores to come compete with each other only.

    A later stage scores other exits: none of its epochs might ever be "best" beside
    those of the first, and `Checkpoint` would put the first stage's weights back.
    """
    for _, callback in callbacks:
        if hasattr(callback, "best_score_"):
            callback.best_score_ = math.inf if callback.lower_is_better else -math.inf


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
