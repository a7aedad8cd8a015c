"""Clusters of prompts: the same for the same memory, and made of what lies together."""

import numpy as np

from classifier.clusters import Clusters
from classifier.memory import Memory


def memory_around(directions: np.ndarray, each: int, seed: int) -> Memory:
    rng = np.random.default_rng(seed)
    vectors = np.repeat(directions, each, axis=0) + rng.normal(0, 0.05, (each * len(directions), directions.shape[1]))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    n = len(vectors)
    return Memory(vectors, np.zeros((n, 1), np.float32), np.ones(n), np.full(1, 0.5), np.zeros(n, np.float32))


def test_prompts_of_one_kind_share_a_cluster_that_no_other_kind_has() -> None:
    kinds = np.eye(6, dtype=np.float32)

    found = Clusters.of(memory_around(kinds, each=30, seed=1), count=6).nearest(kinds)

    assert len(set(found.tolist())) == 6


def test_the_same_memory_gives_the_same_clusters_and_a_small_one_fewer() -> None:
    memory = memory_around(np.eye(4, dtype=np.float32), each=10, seed=2)

    assert np.array_equal(Clusters.of(memory).centres, Clusters.of(memory).centres)
    assert len(Clusters.of(memory_around(np.eye(2, 3, dtype=np.float32), each=1, seed=3)).centres) == 2
