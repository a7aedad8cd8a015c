"""The table of quantisers: every method beats the plain rounding of its precision where inputs have outliers."""

from tests.inference_core.quantization.synthetic_layers import bench_quantisers


def test_each_method_errs_less_than_plain_rounding_on_inputs_it_was_not_calibrated_on() -> None:
    rows = list(bench_quantisers(outputs=64, inputs=256, tokens=1024))
    assert [row["method"] for row in rows[: len(rows) // 2]] == [row["method"] for row in rows[len(rows) // 2 :]]
    shares = {row["method"]: row["of_plain"] for row in rows if row["layer"] == "outliers"}
    assert shares["awq"] < 0.7
    assert shares["gptq"] < 0.8
    assert shares["gptq, act-order"] < shares["gptq"] * 1.05
    assert shares["smoothquant"] < 0.5
    random = {row["method"]: row["of_plain"] for row in rows if row["layer"] == "random"}
    assert random["awq"] < 1.0
    assert random["gptq"] < 1.25
