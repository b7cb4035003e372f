"""How a multi-exit encoder trains: the hooks of skorch's training loop."""

import warnings
from functools import partial

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from skorch import NeuralNetClassifier
from skorch.callbacks import (
    EpochTimer,
    GradientNormClipping,
    PassthroughScoring,
)
from skorch.utils import TeeGenerator

from .backbones import load_backbone
from .callbacks import (
    BatchProgressBar,
    EpochLog,
    WarmupScheduler,
    check_monitored,
    forget_best_scores,
    raised_by_callback,
    release_training_state,
)
from .families import family_of
from .gradients import MicroBatch, gated_backward
from .head_init import initialize_heads
from .inference import move
from .optimization import autocast_dtype, parameter_groups, with_fast_kernel
from .parameters import resolve_device
from .strategies import exits_of, stages_of
from .training_data import ordered_batches, row_numbers, training_batches
from .user_code import stacklevel

#: Parameters of skorch that have no meaning here.
UNUSED_PARAMETERS = (
    "compile",
    "dataset",
    "predict_nonlinearity",
    "torch_load_kwargs",
    "use_caching",
)


def may_be_parameter(name):
    """Whether a name is neither private, nor a fitted attribute, nor unused here."""
    return name[0] != "_" and name[-1] != "_" and name not in UNUSED_PARAMETERS


class MultiExitNet(NeuralNetClassifier):
    """skorch's classifier for a `MultiExitEncoder`: hooks, no public interface.

    Subclasses bring the parameters; see `ACLClassifier`.
    """

    # -- parameters ----------------------------------------------------------

    def _get_param_names(self):
        # skorch reads __dict__: keep what is private out of get_params and clone
        return [name for name in self.__dict__ if may_be_parameter(name)]

    def set_params(self, **params):
        """Set parameters; no value is checked, nothing loaded before `fit`.

        Parameters
        ----------
        **params
            New values by name.

        Returns
        -------
        self

        Raises
        ------
        ValueError
            If there is no parameter of that name.
        """
        for name in params:
            if not may_be_parameter(name):
                raise ValueError(
                    f"Invalid parameter {name!r} for estimator {type(self).__name__}; "
                    "get_params() lists the valid ones."
                )
        if "callbacks" in params:
            # skorch would build them here, and fail if they cannot be built
            self.callbacks = params.pop("callbacks")
        # skorch re-initialises the module of a fitted net when module__ or
        # criterion__ parameters change, which would throw the weights away.
        initialized, self.initialized_ = self.initialized_, False
        try:
            super().set_params(**params)
        finally:
            self.initialized_ = initialized
        return self

    def __setattr__(self, name, value):
        if name == "backbone":
            # skorch refuses a live model here in terms of its own hooks; the check of
            # the parameters says what to pass instead
            vars(self)[name] = value
        else:
            super().__setattr__(name, value)

    __repr__ = BaseEstimator.__repr__
    get_metadata_routing = BaseEstimator.get_metadata_routing

    @property
    def _default_callbacks(self):
        callbacks = [
            ("epoch_timer", EpochTimer()),
            ("train_loss", PassthroughScoring("train_loss", on_train=True)),
            ("valid_loss", PassthroughScoring("valid_loss")),
            ("valid_acc", PassthroughScoring("valid_acc", lower_is_better=False)),
            ("lr_scheduler", WarmupScheduler(self.warmup, self.lr_schedule)),
            ("progress_bar", BatchProgressBar()),
            ("print_log", EpochLog()),
        ]
        if self.max_grad_norm is not None:
            clipping = GradientNormClipping(self.max_grad_norm)
            callbacks.insert(-1, ("gradient_clipping", clipping))
        return callbacks

    def restart_training_parts(self):
        """New callbacks, criterion and optimizer around the module there is."""
        # "initialized" would make skorch print that it re-initialises them
        self.initialized_ = False
        self.stage_ = self.stages[0]
        self._initialize_virtual_params()
        self._initialize_callbacks()
        self._initialize_criterion()
        self._initialize_optimizer()
        self.initialized_ = True

    # -- parts ---------------------------------------------------------------

    @property
    def stages(self):
        """What the strategy trains, in order; `stage_` is the one that is running."""
        return stages_of(self.strategy, self.module_.exit_layer_numbers)

    def initialize_module(self):
        """Load the pretrained encoder and put an exit after each layer it needs."""
        backbone, self.tokenizer_ = load_backbone(self.backbone, self.n_layers)
        self.module_ = self.build_module(backbone).to(resolve_device(self.device))
        self.stage_ = self.stages[0]
        return self

    def build_module(self, backbone):
        """Multi-exit encoder around a backbone, for the classes of this fit."""
        n_layers = family_of(backbone.config).n_layers(backbone)
        return self.module(
            backbone,
            len(self.classes_),
            exit_layers=exits_of(self.strategy, n_layers),
            pooling=self.pooling,
            **self.get_params_for("module"),
        )

    def get_params_for_optimizer(self, prefix, named_parameters):
        """Parameter groups and settings of the optimizer of the running stage."""
        kwargs = self.get_params_for(prefix)
        lr = kwargs.setdefault("lr", self.lr)
        named = list(named_parameters)
        trained = self.stage_.parameters(self.module_, (p for _, p in named))
        trained = set(map(id, trained))
        groups = parameter_groups(
            [(name, p) for name, p in named if id(p) in trained],
            lr=lr,
            head_lr_factor=self.head_lr_factor,
            user_groups=kwargs.pop("param_groups", ()),
        )
        return (groups,), with_fast_kernel(self.optimizer, kwargs)

    def get_split_datasets(self, X, y=None, **fit_params):
        """Training and validation rows, split before the loop began."""
        return X.train, X.valid

    def get_iterator(self, dataset, training=False):
        """Batches of similar length: shuffled for training, else every row once."""
        prefix = "iterator_train" if training else "iterator_valid"
        kwargs = self.get_params_for(prefix)
        batch_size = kwargs.pop("batch_size", self.batch_size)
        loader = getattr(self, prefix)
        if not training:
            return ordered_batches(dataset, batch_size, loader=loader, **kwargs)
        step_size = batch_size * self.gradient_accumulation_steps
        return training_batches(
            dataset, step_size, seed=self.seed_, loader=loader, **kwargs
        )

    @property
    def training_batch_size(self):
        """Texts per mini-batch of the training."""
        return self.get_params_for("iterator_train").get("batch_size", self.batch_size)

    def check_data(self, X, y=None):
        """Nothing to do: `fit` has checked X and y."""

    # -- steps ---------------------------------------------------------------

    def train_step(self, batch, **fit_params):
        """One optimizer step, gated, over the micro-batches of a batch.

        Returns
        -------
        step : dict
            `loss`, a scalar tensor; `y_pred` is None.
        """
        trains = self.stage_.step(len(self.step_angles_))
        self._set_training(True)
        trains.set_modes(self.module_)
        self._zero_grad_optimizer()
        learnable = [parameter for _, parameter in self.get_all_learnable_params()]
        step = gated_backward(
            self.module_,
            trains.parameters(self.module_, learnable),
            self._micro_batches(trains, *batch),
            self.criterion_,
            angle_threshold=self.angle_threshold,
            gate_scope=trains.gate_scope(self.gate_scope),
            exits=trains.exits,
            scale=self._loss_scale(),
        )
        if self.scaler_ is not None:
            self.scaler_.unscale_(self.optimizer_)
        self.notify(
            "on_grad_computed",
            named_parameters=TeeGenerator(self.get_all_learnable_params()),
            batch=batch,
            training=True,
        )
        self._optimizer_step()
        self.step_angles_.append((step.angle, step.gated))
        return {"loss": step.loss, "y_pred": None}

    def _micro_batches(self, trains, inputs, labels, weights):
        """Functions that run the forward pass of one micro-batch each."""
        total = float(weights.sum())

        def forward(rows):
            longest = int(inputs["attention_mask"][rows].sum(1).max())
            part = {name: tensor[rows, :longest] for name, tensor in inputs.items()}
            # a batch without weight has a loss of zero whatever its share
            share = float(weights[rows].sum()) / total if total > 0 else 0.0
            return self._forward(trains, part, labels[rows], weights[rows], share)

        size = self.training_batch_size
        starts = range(0, len(labels), size)
        return [partial(forward, slice(i, i + size)) for i in starts]

    def _forward(self, trains, inputs, labels, weights, share):
        device = next(self.module_.parameters()).device
        dtype = autocast_dtype(self.mixed_precision, device)
        autocast = torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)
        exits = trains.exits_to_run(self.criterion_)
        with autocast, trains.without_graph(self.module_):
            outputs = self.module_(move(inputs, device), exits=exits)
        terms = self.criterion_.terms(outputs, labels.to(device), weights.to(device))
        return MicroBatch(outputs, trains.own_terms(terms), share)

    def _loss_scale(self):
        if self.scaler_ is None:
            return 1.0
        return self.scaler_.scale(torch.ones((), device=self.scaler_._device))

    def _optimizer_step(self):
        if self.scaler_ is None:
            self.optimizer_.step()
        else:
            self.scaler_.step(self.optimizer_)
            self.scaler_.update()

    def validation_step(self, batch, **fit_params):
        """Mean cross-entropy and accuracy for a batch, without training.

        The means are over the exits that the running stage trains.

        Returns
        -------
        step : dict
            `loss`, a scalar tensor; `y_pred`, logits (n_exits, B, C).
        """
        self._set_training(False)
        inputs, labels, _ = batch
        device = next(self.module_.parameters()).device
        labels = labels.to(device)
        with torch.no_grad():
            logits = self.module_(move(inputs, device), exits=self.stage_.exits).logits
            n_exits = len(logits)
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), labels.repeat(n_exits)
            )
        accuracy = (logits.argmax(-1) == labels).float().mean().item()
        self.history.record_batch("valid_acc", accuracy)
        return {"loss": loss, "y_pred": logits}

    def on_epoch_begin(self, net, **kwargs):
        """Open an entry of the history."""
        super().on_epoch_begin(net, **kwargs)
        if self.stage_.number is not None:
            self.history.record("stage", self.stage_.number)

    def run_single_epoch(self, iterator, training, prefix, step_fn, **fit_params):
        """One epoch; after a training epoch the history learns of the gate."""
        first = len(self.step_angles_)
        super().run_single_epoch(iterator, training, prefix, step_fn, **fit_params)
        steps = np.array(self.step_angles_[first:], dtype=np.float32).reshape(-1, 2)
        if not training or not len(steps) or not self.gate_is_on:
            return
        measured = np.isfinite(steps[:, 0])
        angle = float(steps[measured, 0].mean()) if measured.any() else np.nan
        self.history.record("angle_mean", angle)
        self.history.record("gated_share", float(steps[:, 1].mean()))
        if not measured.all():
            self.history.record("angle_undefined", int((~measured).sum()))

    @property
    def gate_is_on(self):
        """Whether training measures angles."""
        return self.angle_threshold is not None and self.criterion_.has_contrastive

    # -- a whole training ----------------------------------------------------

    def run_training(self, data, epochs):
        """Train on a `TrainingSet`, `epochs` in each stage; leave nothing behind."""
        if data.valid is None:
            check_monitored(self.callbacks_)
        self.step_angles_ = []
        self.angles_ = np.empty(0, np.float32)  # fitted: callbacks may predict
        self.interrupted_ = False
        try:
            for stage in self.stages:
                if stage != self.stage_:
                    self._start_stage(stage, data)
                if not self._run_stage(data, epochs):
                    self.interrupted_ = True
                    break
            self.warn_if_diverged()
        finally:
            angles = [angle for angle, _ in self.step_angles_]
            self.angles_ = np.array(angles, dtype=np.float32)
            self._release_training()

    def start_heads(self, train, exits=None):
        """Set the heads of some exits, all by default, by `head_init`."""
        device = next(self.module_.parameters()).device
        batches = (
            (move(inputs, device), labels, weights)
            for inputs, labels, weights in ordered_batches(train, self.batch_size)
        )
        initialize_heads(
            self.module_, batches, method=self.head_init, seed=self.seed_, exits=exits
        )

    def _start_stage(self, stage, data):
        """Go on to a later stage: a new optimizer over what it trains."""
        self.stage_ = stage
        if data.heads_start and self.head_init != "random":
            # no step has trained them, and the encoder is another one now
            self.start_heads(data.train, stage.exits)
        self.module_.zero_grad(set_to_none=True)  # no optimizer will: it is clipped by
        self.initialized_ = False  # skorch prints otherwise
        self._initialize_optimizer()
        self.initialized_ = True

    def _run_stage(self, data, epochs):
        """Epochs of the running stage; False if the user interrupted them."""
        device = next(self.module_.parameters()).device
        fp16 = autocast_dtype(self.mixed_precision, device) is torch.float16
        self.scaler_ = torch.amp.GradScaler(device.type) if fp16 else None
        labels = row_numbers(data.train)[0].y
        finished = True
        self.notify("on_train_begin", X=data, y=labels)
        if self.stage_ != self.stages[0]:
            forget_best_scores(self.callbacks_)
        try:
            self.fit_loop(data, epochs=epochs)
        except KeyboardInterrupt as error:
            finished = raised_by_callback(error)
            if not finished:
                self._warn_interrupted()
        self.notify("on_train_end", X=data, y=labels)
        return finished

    def _warn_interrupted(self):
        rest = ""
        if self.stage_ != self.stages[-1]:
            rest = " Only the last exit was trained; the others are as they were."
        warnings.warn(
            "Training was interrupted; the classifier keeps what it has learned so "
            f"far.{rest}",
            UserWarning,
            stacklevel=stacklevel(),
        )

    def warn_if_diverged(self):
        """Warn of weights that are no longer finite."""
        if not all(p.isfinite().all() for p in self.module_.parameters()):
            warnings.warn(
                "Training diverged: weights are no longer finite, and every prediction "
                "will be NaN or the first class. Lower lr or head_lr_factor.",
                ConvergenceWarning,
                stacklevel=stacklevel(),
            )

    def trim_for_prediction(self):
        """Nothing to do: no optimizer or gradient outlives `fit`."""

    def _release_training(self):
        self.module_.zero_grad(set_to_none=True)
        release_training_state(self.callbacks_)
        self.step_angles_ = []
        self.optimizer_ = self.scaler_ = self.stage_ = None
        self.virtual_params_ = {}  # skorch's way to reach into the optimizer
