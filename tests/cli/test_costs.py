"""The costs command: numbers for people, and one JSON object."""

SIZES = ("--tokens", 9, "--dim", 20, "--heads", 4, "--outputs", 3)


def test_json_holds_counts_and_formulas(run_json):
    result = run_json("costs", *SIZES)
    assert (result["tokens"], result["dim"], result["heads"], result["outputs"]) == (9, 20, 4, 3)
    assert len(result["models"]) == 6
    for model in result["models"]:
        assert model["counted_parameters"] == model["parameters"]
        assert model["counted_flops"] == model["flops"]
    convex = result["models"][2]
    assert (convex["model"], convex["parameters"], convex["flops"]) == ("convex", 540, 1080)


def test_tables_fit_a_terminal(run):
    shown = run("costs", *SIZES, "--hidden", 8).stdout
    assert "116,640" in shown and "2h(2n²d + 3nd² + ndc)" in shown and "O(nd + c)" in shown
    assert "alternative: the factor h is missing" in shown
    assert max(map(len, shown.splitlines())) <= 80


def test_sizes_are_required(run):
    assert "--heads" in run("costs", "--tokens", 9, "--dim", 20, "--outputs", 3, code=2).stderr
