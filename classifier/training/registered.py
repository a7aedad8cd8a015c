"""The predictors that every evaluation compares: one line each, in the order of the tables."""

from classifier.training.predictors import Entry

SHIPPED = "shipped artefact"
DOMAIN_LABEL = "domain's mean (label known)"

PREDICTORS: tuple[Entry, ...] = (
    Entry("random", "classifier.training.simple_predictors:Random"),
    Entry("heuristic (length, keywords)", "classifier.training.simple_predictors:LengthHeuristic"),
    Entry(DOMAIN_LABEL, "classifier.training.simple_predictors:DomainMean"),
    Entry("hand + LR", "classifier.training.baselines:hand_logistic"),
    Entry("TF-IDF + LR", "classifier.training.baselines:tfidf_logistic"),
    Entry("static-256 + LR", "classifier.training.baselines:static_logistic"),
    Entry("static-256 + MLP", "classifier.training.baselines:static_mlp"),
    Entry("static-256 + kNN", "classifier.training.baselines:static_neighbours"),
    Entry("hand+static + LR", "classifier.training.baselines:hand_static_logistic"),
    Entry("mean logit: TF-IDF, hand+static", "classifier.training.baselines:mean_logit", within_1_ms=False),
    Entry("hidden states", "classifier.training.hidden_predictor:from_environment", within_1_ms=False),
    Entry("fine-tuned checkpoint", "classifier.training.transformer_predictor:from_environment", within_1_ms=False),
    Entry("other models' outcomes", "classifier.training.simple_predictors:OtherModels", within_1_ms=False),
)
