"""`TunedExitClassifierCV`: the cheapest exit rule, with a guarantee."""

import warnings
from numbers import Integral, Real

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    _fit_context,
    clone,
)
from sklearn.metrics import check_scoring, get_scorer_names
from sklearn.model_selection import ShuffleSplit, StratifiedShuffleSplit, check_cv
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

from .exit_costs import exit_costs, sharing_weights, take_rows
from .exit_selection import (
    RISKS,
    best,
    certify,
    cheapest,
    evaluate,
    make_candidates,
    pool,
)
from .inference import resolve_exit_layer
from .randomness import draw_seed
from .risk import binomial_upper_bound, smallest_n
from .tuning_checks import check_labels, check_request, reservations
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
        replaced. For a pipeline, make this classifier its last step.
    max_drop : float, default=0.01
        The highest risk that is allowed, in (0, 1).
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
        deciding; or a function of the number of a layer and the texts that returns the
        cost of running them up to it.
    scoring : str or callable, default=None
        None is accuracy. The drop of any other score stands in for the risk and cannot
        be guaranteed: it needs ``confidence=None`` or ``objective="quality"``.
    cv : int, float, cross-validation generator, iterable or "prefit", default=0.2
        Share of the texts to hold out, stratified; or a splitter, of which one with
        several folds needs ``refit=True``; "prefit" takes all texts given to `fit` for
        calibration, which must have served neither the fit, nor its early stopping, nor
        the temperatures of the exits.
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
        shares the weights of `estimator`, whose parameters stay as they are.
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
        depth, too, where nothing else could be certified.
    risk_ : float
        Share of the calibration texts with a loss; with `scoring`, the drop.
    risk_bound_ : float
        Upper confidence bound of the risk of this candidate taken on its own; at most
        `max_drop` where certified. What is guaranteed is `max_drop`. NaN with `scoring`
        or without `confidence`.
    cost_ : float
        Mean cost over the calibration texts.
    best_score_, full_depth_score_ : float
        Score of the exits in use and of full depth on the calibration texts; NaN where
        these have no labels.
    n_calibration_ : int
        Number of calibration texts.
    n_required_ : int or None
        Smallest number that could certify a candidate without any loss; None without
        `confidence`.
    cv_results_ : dict of ndarray of shape (n_candidates,)
        With ``store_cv_results=True``: ``rule``, ``threshold`` (NaN for fixed exits),
        ``exit_layer``, ``mean_exit_layer``, ``cost``, ``score``, ``risk``,
        ``p_value``, ``certified``. Full depth comes first. Without `confidence` or with
        `scoring` there are no p-values, and only full depth is certified.
    best_index_ : int
        With ``store_cv_results=True``: the row that was chosen.
    classes_ : ndarray of shape (n_classes,)
        Labels in sorted order.

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

    _parameter_constraints: dict = {
        "max_drop": [Interval(Real, 0, 1, closed="neither")],
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
            Labels, or the name of their column. None is possible with ``cv="prefit"``,
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
            For parameters that cannot be used, before anything is fitted.

        Warns
        -----
        UserWarning
            If there is no guarantee where one was asked for, if the calibration texts
            are too few to certify anything, and if full depth stays in use.
        """
        _raise_for_params(params, self, None)
        # 1. what is asked for, and whether so many texts can give it
        check_request(self)
        labels = check_labels(self, X, y)
        routed = process_routing(self, "fit", **params)
        splits = self._split(X, labels, routed["splitter"].split)
        has_guarantee = self._can_guarantee(len(splits))
        self.n_calibration_ = sum(len(held_out) for _, held_out in splits)
        self.n_required_ = self._smallest_n()
        for message in reservations(self, has_guarantee):
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
        index = self._choose(candidates, layers, pool(evaluations))

        # 4. the classifier that predicts
        if self.refit:
            rows = np.arange(_num_samples(X))
            estimator = self._fit_estimator(X, y, rows, fit_params)
        self.guaranteed_ = has_guarantee
        self._put_in_use(estimator, candidates[index], layers)
        return self

    @property
    def _is_prefit(self):
        return isinstance(self.cv, str)

    def _split(self, X, labels, split_params):
        """List of (rows to fit on, rows held out); None if nothing is to be fitted."""
        if self._is_prefit:
            return [(None, np.arange(_num_samples(X)))]
        if isinstance(self.cv, Real) and not isinstance(self.cv, Integral):
            return [self._hold_out(labels)]
        cv = check_cv(self.cv, y=labels, classifier=True)
        splits = list(cv.split(X, labels, **split_params))
        if len(splits) > 1 and not self.refit:
            raise ValueError(
                f"cv={self.cv!r} has {len(splits)} folds, so refit cannot be False: "
                "set refit=True, which gives up the guarantee, or hold out one share "
                "with cv=0.2."
            )
        return splits

    def _hold_out(self, labels):
        seed = draw_seed(self.random_state)
        settings = {"n_splits": 1, "test_size": self.cv, "random_state": seed}
        try:
            return next(StratifiedShuffleSplit(**settings).split(labels, labels))
        except ValueError as error:
            split = next(ShuffleSplit(**settings).split(labels))
            warnings.warn(
                f"The split is not stratified by label. {error}",
                UserWarning,
                stacklevel=stacklevel(),
            )
            return split

    def _can_guarantee(self, n_splits):
        is_asked = self.objective == "speed" and self.confidence is not None
        return is_asked and n_splits == 1 and not self.refit

    @property
    def _alpha_of_a_rule(self):
        return (1 - self.confidence) / len(self.rules)

    def _smallest_n(self):
        if self.confidence is None:
            return None
        return smallest_n(self.max_drop, self._alpha_of_a_rule)

    def _fit_estimator(self, X, y, rows, fit_params):
        """A clone fitted on some rows, or the estimator itself if it is fitted."""
        if rows is None:
            return self.estimator
        labels = y if isinstance(y, str) else take_rows(y, rows)
        fit_params = _check_method_params(X, fit_params, indices=rows)
        return clone(self.estimator).fit(take_rows(X, rows), labels, **fit_params)

    def _evaluate(self, estimator, X, labels, rows, score_params):
        """What the candidates do on some rows that the estimator has not seen."""
        layers = _layers_in_use(estimator)
        score_params = _check_method_params(X, score_params, indices=rows)
        X = take_rows(X, rows)
        codes = score = None
        if labels is not None:
            labels = labels[rows]
            codes = _columns_of(labels, estimator.classes_)
        if self.scoring is not None:
            scorer = check_scoring(estimator, scoring=self.scoring)

            def score(proba):
                answers = _Answers(estimator.classes_, proba)
                return scorer(answers, X, labels, **score_params)

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

    def _choose(self, candidates, layers, evaluation):
        """Position of the candidate to use; sets the figures that belong to it."""
        score, cost = evaluation.score, evaluation.cost
        risk = evaluation.n_losses / evaluation.n_samples
        p_values = np.full(len(candidates), np.nan)
        certified = np.arange(len(candidates)) == 0
        if self.scoring is not None:
            risk = score[0] - score
        elif self.confidence is not None:
            p_values, certified = certify(
                candidates,
                evaluation,
                level=self.max_drop,
                alpha=1 - self.confidence,
            )
        if self.objective == "quality":
            index = self._best_within_ceiling(evaluation)
        else:
            estimated = self.confidence is None
            allowed = risk <= self.max_drop if estimated else certified
            index = cheapest(cost, allowed)
            self._warn_if_full_depth(index, layers)

        for name in ("cv_results_", "best_index_"):
            vars(self).pop(name, None)  # of an earlier fit
        self.risk_ = float(risk[index])
        self.risk_bound_ = self._risk_bound(evaluation, index)
        self.cost_ = float(cost[index])
        self.best_score_ = float(score[index])
        self.full_depth_score_ = float(score[0])
        if self.store_cv_results:
            self.best_index_ = index
            self.cv_results_ = {
                **_described(candidates, layers),
                "mean_exit_layer": evaluation.mean_exit_layer,
                "cost": cost,
                "score": score,
                "risk": risk,
                "p_value": p_values,
                "certified": certified,
            }
        return index

    def _best_within_ceiling(self, evaluation):
        cost, layers = evaluation.cost, evaluation.mean_exit_layer
        allowed = np.ones(len(cost), dtype=bool)
        if self.max_layers is not None:
            allowed &= layers <= self.max_layers
        if self.max_time is not None:
            allowed &= cost <= self.max_time
        if allowed.any():
            return best(evaluation.score, cost, allowed)
        warnings.warn(
            f"No candidate is within max_layers={self.max_layers} and max_time="
            f"{self.max_time}: the least are {layers.min():.3g} layers and a cost of "
            f"{cost.min():.3g}. The cheapest is in use; a fixed exit (None in rules) "
            "may be cheaper.",
            UserWarning,
            stacklevel=stacklevel(),
        )
        return cheapest(cost, ~allowed)

    def _warn_if_full_depth(self, index, layers):
        """Say that full depth stays in use, unless the reason has been given."""
        if len(layers) == 1:
            message = (
                f"The estimator has one exit in use, after layer {layers[0]}: there is "
                "nothing to choose. Fit it with strategy='joint' and exit_layer=None."
            )
        elif index > 0 or self.n_calibration_ < (self.n_required_ or 0):
            return
        else:
            message = (
                f"Full depth stays in use: on {self.n_calibration_} calibration texts, "
                f"no exit rule within max_drop={self.max_drop} (confidence="
                f"{self.confidence}) is cheaper. Raise max_drop, calibrate on more "
                "texts, or try other rules."
            )
        warnings.warn(message, UserWarning, stacklevel=stacklevel())

    def _risk_bound(self, evaluation, index):
        if self.scoring is not None or self.confidence is None:
            return np.nan
        if index == 0:
            return 0.0
        bound = binomial_upper_bound(
            evaluation.n_losses[index], evaluation.n_samples, self._alpha_of_a_rule
        )
        return float(bound)

    def _put_in_use(self, estimator, candidate, layers):
        self.exit_layer_ = layers[candidate.position]
        self.exit_rule_ = candidate.rule
        self.exit_threshold_ = candidate.threshold
        self.exit_patience_ = estimator.exit_patience
        self.best_params_ = {
            "exit_layer": self.exit_layer_,
            "exit_threshold": self.exit_threshold_,
        }
        if candidate.rule is not None:
            self.best_params_["exit_rule"] = self.exit_rule_
        if self._is_prefit:
            estimator = sharing_weights(estimator)
        self.estimator_ = estimator.set_params(**self.best_params_)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(estimator, name):
                setattr(self, name, getattr(estimator, name))

    # -- prediction: that of the tuned estimator -----------------------------

    @property
    def classes_(self):
        """Labels in sorted order."""
        return self.estimator_.classes_

    def predict(self, X):
        """Predict labels with the exits that were chosen.

        Parameters
        ----------
        X : array-like
            Texts, as in `fit`.

        Returns
        -------
        labels : ndarray of shape (n_samples,)
        """
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


class _Answers(ClassifierMixin, BaseEstimator):
    """What a scorer sees of a candidate: its probabilities, whatever it is asked."""

    def __init__(self, classes, proba):
        self.classes_ = classes
        self._proba = proba

    def predict_proba(self, X):
        return self._proba

    def predict(self, X):
        return self.classes_[self._proba.argmax(axis=1)]


def _layers_in_use(estimator):
    """Layers of the exits up to the deepest that the estimator's parameter allows."""
    layers = tuple(estimator.exit_layer_numbers_)
    deepest = resolve_exit_layer(estimator.exit_layer, layers)
    return layers[: layers.index(deepest) + 1]


def _columns_of(labels, classes):
    """Position of each label among the classes; -1 for one that is none of them."""
    positions = {label: i for i, label in enumerate(classes.tolist())}
    return np.array([positions.get(label, -1) for label in labels.tolist()])


def _described(candidates, layers):
    """The candidates themselves, as columns of `cv_results_`."""
    rules = np.empty(len(candidates), dtype=object)
    rules[:] = [candidate.rule for candidate in candidates]
    thresholds = [candidate.threshold for candidate in candidates]
    return {
        "rule": rules,
        "threshold": np.array(thresholds, dtype=float),
        "exit_layer": np.array([layers[c.position] for c in candidates]),
    }
