"""`TunedExitClassifierCV`: the cheapest exit rule, with a guarantee."""

import warnings
from numbers import Real

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    _fit_context,
    clone,
)
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.utils import Bunch, get_tags
from sklearn.utils._param_validation import Interval, RealNotInt, StrOptions
from sklearn.utils.metadata_routing import (
    MetadataRouter,
    MethodMapping,
    _raise_for_params,
    process_routing,
)
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import (
    _check_method_params,
    _estimator_has,
    _num_samples,
    check_is_fitted,
)

from .exit_costs import exit_costs, seconds_per_text, take_rows
from .exit_selection import RISKS, evaluate, make_candidates, pool
from .inference import resolve_exit_layer
from .probability_scores import ReadyAnswers
from .shared_weights import sharing_encoder
from .tuning_checks import (
    asks_guarantee,
    check_labels,
    check_request,
    columns_of,
    estimator_of,
    flat_labels,
    is_prefit,
    reservations,
    smallest_calibration,
)
from .tuning_choice import choose, figures, results_of, warn_of_choice
from .tuning_splits import calibration_splits, obstacle
from .user_code import stacklevel


class TunedExitClassifierCV(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Classifier that tunes, on held-out texts, when texts may leave its encoder.

    One fit, one pass over held-out ("calibration") texts that reads all exits, then a
    choice among candidates: exit rules with their thresholds, or fixed exits. By
    default it is the cheapest candidate whose risk is at most `max_drop` with the given
    confidence: a guarantee for the number of texts there is (Learn then Test [1]_), not
    a best guess. Where none can be certified, full depth stays.

    Shaped like `sklearn.model_selection.TunedThresholdClassifierCV`.

    Parameters
    ----------
    estimator : ACLClassifier
        Fitted or not. What its `exit_layer` allows is full depth; its `exit_patience`
        holds for the rules that count; its `exit_threshold` and `exit_rule` are
        replaced. For a pipeline, make this classifier its last step. A fitted one that
        is to stay so in cross-validation and searches: in a `FrozenEstimator`.
    max_drop : float, default=0.01
        The highest risk that is allowed: in (0, 1) or, without `confidence`, also 0.
        With `scoring` the highest drop of the score, any number of at least 0, up to
        rounding.
    confidence : float, default=0.95
        Probability, over the draw of the calibration texts, with which the risk is at
        most `max_drop`. None goes by the plain estimate of the risk, without a
        guarantee.
    objective : {"speed", "quality"}, default="speed"
        The lowest cost within `max_drop`, or the highest score within `max_layers` or
        `max_time`. The latter carries no guarantee.
    risk : {"disagreement", "score"}, default="disagreement"
        The share of texts whose label differs from that of full depth; or the share
        for which full depth is right and the exit wrong, which is at least the drop in
        accuracy.
    rules : list, default=('confidence',)
        Exit rules to choose from: names, functions as in `exit_rule`, and None for
        fixed exits. ``1 - confidence`` is split over them, so each costs power.
    thresholds : int, array-like or dict, default=100
        Number of thresholds per rule, or the thresholds, or a dict from rule to either.
        Those of a function must be listed, the one that keeps texts longest first.
    max_layers : float, default=None
        For ``objective="quality"``: highest mean exit layer.
    max_time : float, default=None
        For ``objective="quality"`` and ``cost="time"``: highest mean time in seconds
        per text.
    cost : {"layers", "flops", "time"} or callable, default="layers"
        Mean exit layer; FLOPs per text of the layers that it runs, which depend on its
        length; seconds per text, measured for each exit on up to 128 of the
        calibration texts and averaged over where texts leave, without the overhead of
        deciding, which is in `measured_time_`; or a function of the number of a layer
        and the texts that returns the cost of running them up to it.
    scoring : str or callable, default=None
        None is accuracy. The drop of any other score stands in for the risk and cannot
        be guaranteed: it needs ``confidence=None`` or ``objective="quality"``.
    cv : int, float, cross-validation generator, iterable or "prefit", default=0.2
        Share of the texts to hold out, stratified; or a splitter, of which one with
        several folds needs ``refit=True``; "prefit" takes all texts given to `fit` for
        calibration, which must have served neither the fit, nor its early stopping, nor
        the temperatures of the exits. Beside these, `ShuffleSplit` and
        `StratifiedShuffleSplit` with one split keep the guarantee, and so does a list
        of one pair (train, test) of your own, which must be a random draw.
    refit : bool, default=False
        Whether to fit once more on all texts after tuning. The guarantee holds for the
        classifier that was calibrated, not for another one.
    random_state : int, RandomState instance or None, default=None
        Seed of the split if `cv` is a float.
    store_cv_results : bool, default=False
        Whether to keep what was found for every candidate.

    Attributes
    ----------
    estimator_ : ACLClassifier
        The fitted classifier with its exit parameters set. With ``cv="prefit"`` it
        has exits of its own on the encoder of `estimator`, which stays as it is. The
        guarantee ends when either of them is trained further, or this one gets new
        temperatures (`calibrate_exits`).
    best_params_ : dict
        The exit parameters that were set.
    exit_layer_ : int
        Deepest layer that may run.
    exit_rule_ : str, callable or None
        The rule; None if every text leaves at `exit_layer_`.
    exit_threshold_ : float or None
        Its threshold.
    exit_patience_ : int
        Number of exits in a row, for the rules that count them.
    guaranteed_ : bool
        Whether the risk is at most `max_drop` with the given confidence. True for full
        depth, too, where nothing else could be certified. False, with a warning, where
        `cv` or `refit` do not allow it, and for texts stratified by label if ``1 -
        confidence`` is above a quarter per rule.
    risk_ : float
        Share of the calibration texts with a loss; with `scoring`, the drop.
    risk_bound_ : float
        Upper confidence bound of the risk of this candidate taken on its own, of level
        ``1 - (1 - confidence) / len(rules)``. What is guaranteed is `max_drop`, which
        is not below it. 0 at full depth; NaN without a guarantee.
    cost_ : float
        Mean cost over the calibration texts.
    measured_time_ : float
        With ``cost="time"``: seconds per text of `predict` as it is now, rule and all,
        measured on up to 128 of the calibration texts.
    best_score_, full_depth_score_ : float
        Score of the exits in use and of full depth on the calibration texts; NaN where
        these have no labels.
    n_calibration_ : int
        Number of calibration texts.
    n_required_ : int or None
        Smallest number that could certify a candidate without any loss; None where no
        guarantee is asked for.
    cv_results_ : dict of ndarray of shape (n_candidates,)
        With ``store_cv_results=True``: ``rule``, ``threshold`` (NaN for fixed exits),
        ``exit_layer``, ``mean_exit_layer``, ``cost``, ``score``, ``risk``,
        ``p_value``, ``certified``. Full depth comes first. Without a guarantee there
        are no p-values, and nothing is certified.
    best_index_ : int
        With ``store_cv_results=True``: the row that was chosen.
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order.
    exit_layer_numbers_ : tuple of int
        Layers after which exits sit, ascending.
    n_exits_ : int
        Number of exits.

    References
    ----------
    .. [1] Angelopoulos, Bates, Candès, Jordan & Lei (2025), "Learn then Test:
       Calibrating Predictive Algorithms to Achieve Risk Control", Annals of Applied
       Statistics 19, arXiv 2110.01052.

    Examples
    --------
    >>> from sklearn_acl import ACLClassifier, TunedExitClassifierCV
    >>> tuned = TunedExitClassifierCV(ACLClassifier(), max_drop=0.05)
    >>> tuned.fit(texts, labels)  # doctest: +SKIP
    >>> tuned.exit_rule_, tuned.exit_threshold_, tuned.cost_  # doctest: +SKIP
    """

    # "no_validation": check_request does it
    _parameter_constraints: dict = {
        "estimator": "no_validation",
        "max_drop": [Interval(Real, 0, None, closed="left")],
        "confidence": [Interval(Real, 0, 1, closed="neither"), None],
        "objective": [StrOptions({"speed", "quality"})],
        "risk": [StrOptions(set(RISKS))],
        "rules": "no_validation",
        "thresholds": "no_validation",
        "max_layers": [Interval(Real, 1, None, closed="left"), None],
        "max_time": [Interval(Real, 0, None, closed="neither"), None],
        "cost": [StrOptions({"layers", "flops", "time"}), callable],
        "scoring": [StrOptions(set(get_scorer_names())), callable, None],
        "cv": [
            "cv_object",
            StrOptions({"prefit"}),
            Interval(RealNotInt, 0, 1, closed="neither"),
        ],
        "refit": ["boolean"],
        "random_state": ["random_state"],
        "store_cv_results": ["boolean"],
    }

    def __init__(
        self,
        estimator,
        *,
        max_drop=0.01,
        confidence=0.95,
        objective="speed",
        risk="disagreement",
        rules=("confidence",),
        thresholds=100,
        max_layers=None,
        max_time=None,
        cost="layers",
        scoring=None,
        cv=0.2,
        refit=False,
        random_state=None,
        store_cv_results=False,
    ):
        self.estimator = estimator
        self.max_drop = max_drop
        self.confidence = confidence
        self.objective = objective
        self.risk = risk
        self.rules = rules
        self.thresholds = thresholds
        self.max_layers = max_layers
        self.max_time = max_time
        self.cost = cost
        self.scoring = scoring
        self.cv = cv
        self.refit = refit
        self.random_state = random_state
        self.store_cv_results = store_cv_results

    # -- fitting -------------------------------------------------------------

    @_fit_context(prefer_skip_nested_validation=False)
    def fit(self, X, y=None, **params):
        """Fit the classifier and choose when texts leave it.

        Parameters
        ----------
        X : array-like of str, of pairs of str, DataFrame or datasets.Dataset
            Texts, as the estimator takes them.
        y : array-like of shape (n_samples,) or str, default=None
            Labels, or the name of their column; with ``cv="prefit"``, of the classes
            of the estimator. None is possible with ``cv="prefit"``,
            ``risk="disagreement"`` and without a score to compute: such a calibration
            needs no labels.
        **params
            Metadata, routed to the `fit` of the estimator, the `split` of the splitter
            and to the scorer. Sample weights count in the training; calibration texts
            count once each.

        Returns
        -------
        self

        Raises
        ------
        ValueError, TypeError
            For parameters, labels and splits that cannot be used, before anything is
            fitted. An earlier fit stays in use whenever this one fails.

        Warns
        -----
        UserWarning
            If there is no guarantee where one was asked for, if the calibration texts
            are too few to certify anything, if full depth stays in use, if
            `exit_patience` is too high for a rule to fire, and if what was chosen takes
            longer than `max_time`.
        """
        _raise_for_params(params, self, None)
        # 1. what is asked for, and whether so many texts can give it
        check_request(self)
        labels = check_labels(self, X, y)
        y = flat_labels(y, labels)
        routed = process_routing(self, "fit", **params)
        splits = calibration_splits(self, X, labels, routed["splitter"].split)
        is_asked = asks_guarantee(self)
        in_the_way = obstacle(self, len(splits)) if is_asked else None
        has_guarantee = is_asked and in_the_way is None
        n_calibration = sum(len(held_out) for _, held_out in splits)
        n_required = smallest_calibration(self)
        for message in reservations(self, in_the_way, n_calibration, n_required):
            warnings.warn(message, UserWarning, stacklevel=stacklevel())

        # 2. fit, and see what the candidates do on texts that were held out
        fit_params = routed["estimator"].fit
        score_params = routed.get("scorer", Bunch(score={})).score
        evaluations = []
        for train, held_out in splits:
            estimator = self._fit_estimator(X, y, train, fit_params)
            evaluations.append(
                self._evaluate(estimator, X, labels, held_out, score_params)
            )

        # 3. choose one
        layers = _layers_in_use(estimator)
        candidates = make_candidates(self.rules, self.thresholds, len(layers))
        choice = choose(self, candidates, layers, pool(evaluations))
        warn_of_choice(self, choice, estimator, n_required)

        # 4. the classifier that predicts
        if self.refit:
            rows = np.arange(_num_samples(X))
            estimator = self._fit_estimator(X, y, rows, fit_params)
        fitted = self._put_in_use(estimator, choice)
        if self.cost == "time":
            texts = take_rows(X, splits[-1][1])
            fitted["measured_time_"] = self._measure(fitted["estimator_"], texts)

        # 5. what is known of it; up to here an earlier fit is as it was
        fitted |= figures(self, choice, has_guarantee)
        fitted["guaranteed_"] = has_guarantee
        fitted["n_calibration_"] = n_calibration
        fitted["n_required_"] = n_required
        if self.store_cv_results:
            fitted["cv_results_"] = results_of(choice, has_guarantee)
            fitted["best_index_"] = choice.index
        self._replace_attributes(fitted)
        return self

    def _fit_estimator(self, X, y, rows, fit_params):
        """A clone fitted on some rows, or the estimator itself if it is fitted."""
        if rows is None:
            return estimator_of(self)
        labels = y if isinstance(y, str) else take_rows(y, rows)
        fit_params = _check_method_params(X, fit_params, indices=rows)
        # its own threshold is replaced, and may be none that its exits allow
        estimator = clone(self.estimator).set_params(exit_threshold=None)
        return estimator.fit(take_rows(X, rows), labels, **fit_params)

    def _evaluate(self, estimator, X, labels, rows, score_params):
        """What the candidates do on some rows that the estimator has not seen."""
        layers = _layers_in_use(estimator)
        score_params = _check_method_params(X, score_params, indices=rows)
        X = take_rows(X, rows)
        codes = score = None
        if labels is not None:
            labels = labels[rows]
            codes = columns_of(labels, estimator.classes_)
        if self.scoring is not None:
            scorer = check_scoring(estimator, scoring=self.scoring)

            def score(proba):
                answers = ReadyAnswers(proba, estimator.classes_)
                try:
                    return scorer(answers, X, labels, **score_params)
                except AttributeError as error:
                    if ReadyAnswers.__name__ not in str(error):
                        raise
                    raise ValueError(
                        f"scoring={self.scoring!r} must go by predict, predict_proba "
                        "and classes_ of the estimator that it gets: each candidate's "
                        f"answers, no model. {error}"
                    ) from error

        return evaluate(
            make_candidates(self.rules, self.thresholds, len(layers)),
            estimator.predict_proba_exits(X)[: len(layers)],
            layers,
            exit_costs(self.cost, estimator, X, layers),
            codes=codes,
            risk=self.risk,
            patience=estimator.exit_patience,
            score=score,
        )

    def _put_in_use(self, estimator, choice):
        """Attributes that name what was chosen, and the estimator that has it set."""
        candidate = choice.candidate
        chosen = {
            "exit_layer": choice.layers[candidate.position],
            "exit_threshold": candidate.threshold,
        }
        if candidate.rule is not None:
            chosen["exit_rule"] = candidate.rule
        if is_prefit(self):
            estimator = sharing_encoder(estimator)
        fitted = {
            "estimator_": estimator.set_params(**chosen),
            "best_params_": chosen,
            "exit_layer_": chosen["exit_layer"],
            "exit_rule_": candidate.rule,
            "exit_threshold_": candidate.threshold,
            "exit_patience_": estimator.exit_patience,
        }
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                fitted[name] = getattr(estimator, name)
        return fitted

    def _measure(self, estimator, X):
        """Seconds per text of predicting with what was chosen."""
        measured = float(seconds_per_text(estimator, X, [{}])[0])
        if self.max_time is not None and measured > self.max_time:
            warnings.warn(
                f"What was chosen takes {measured:.3g} seconds per text, above "
                f"max_time={self.max_time}: the estimate leaves out what deciding "
                "costs. Lower max_time, or choose among fixed exits (rules=[None]).",
                UserWarning,
                stacklevel=stacklevel(),
            )
        return measured

    def _replace_attributes(self, fitted):
        """Set what a fit found, all at once, instead of what an earlier one did."""
        for name in [name for name in vars(self) if name.endswith("_")]:
            delattr(self, name)
        vars(self).update(fitted)

    # -- prediction: that of the tuned estimator -----------------------------

    @property
    def classes_(self):
        """Labels in sorted order."""
        return self.estimator_.classes_

    @property
    def exit_layer_numbers_(self):
        """Layers after which exits sit, ascending, counted from 1."""
        return self.estimator_.exit_layer_numbers_

    @property
    def n_exits_(self):
        """Number of exits."""
        return len(self.exit_layer_numbers_)

    def predict(self, X, return_exit_layers=False):
        """Predict labels with the exits that were chosen.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.
        return_exit_layers : bool, default=False
            Whether to return the layers as well.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        layers : ndarray of shape (n_samples,), dtype int64
            The layer whose exit answered, for each text; only with
            `return_exit_layers`.
        """
        if return_exit_layers:
            return self._fitted_estimator.predict(X, return_exit_layers=True)
        return self._fitted_estimator.predict(X)

    def predict_proba(self, X):
        """Probability of each class, by the exit at which a text leaves.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        proba : ndarray of shape (n_samples, n_classes)
        """
        return self._fitted_estimator.predict_proba(X)

    @available_if(_estimator_has("decision_function"))
    def decision_function(self, X):
        """Class scores, by the exit at which a text leaves.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        scores : ndarray of shape (n_samples, n_classes) or (n_samples,)
        """
        return self._fitted_estimator.decision_function(X)

    @available_if(_estimator_has("transform"))
    def transform(self, X):
        """Text embeddings, as the tuned estimator gives them.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        embeddings : ndarray of shape (n_samples, n_features)
        """
        return self._fitted_estimator.transform(X)

    def predict_proba_exits(self, X):
        """Probability of each class at every exit, from one pass.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        proba : ndarray of shape (n_exits, n_samples, n_classes)
        """
        return self._fitted_estimator.predict_proba_exits(X)

    def exit_layers(self, X):
        """Layer after which each text leaves.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        layers : ndarray of shape (n_samples,)
        """
        return self._fitted_estimator.exit_layers(X)

    def score(self, X, y=None, sample_weight=None):
        """Accuracy of `predict`.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.
        y : array-like of shape (n_samples,) or str, default=None
            Labels, or the name of their column; not to be left out.
        sample_weight : array-like of shape (n_samples,), default=None
            Weights of the texts.

        Returns
        -------
        accuracy : float
        """
        return self._fitted_estimator.score(X, y, sample_weight=sample_weight)

    @property
    def _fitted_estimator(self):
        check_is_fitted(self)
        return self.estimator_

    # -- scikit-learn --------------------------------------------------------

    def get_metadata_routing(self):
        """Metadata routing: to the estimator, the splitter and the scorer.

        Returns
        -------
        routing : MetadataRouter
        """
        router = MetadataRouter(owner=self)
        fit = MethodMapping().add(caller="fit", callee="fit")
        router.add(estimator=self.estimator, method_mapping=fit)
        split = MethodMapping().add(caller="fit", callee="split")
        router.add(splitter=self.cv, method_mapping=split)
        if self.scoring is not None:
            scorer = check_scoring(self.estimator, scoring=self.scoring)
            score = MethodMapping().add(caller="fit", callee="score")
            router.add(scorer=scorer, method_mapping=score)
        return router

    def __sklearn_is_fitted__(self):
        return hasattr(self, "estimator_")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags = get_tags(self.estimator).input_tags
        tags.target_tags.required = False  # see the parameter y of `fit`
        return tags


def _layers_in_use(estimator):
    """Layers of the exits up to the deepest that the estimator's parameter allows."""
    layers = tuple(estimator.exit_layer_numbers_)
    deepest = resolve_exit_layer(estimator.exit_layer, layers)
    return layers[: layers.index(deepest) + 1]
