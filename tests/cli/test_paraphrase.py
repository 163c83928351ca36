"""``reproduce paraphrase``: a table, and one line where MRPC is missing."""

from convexformer.experiments import classification_probes


def test_a_table_and_a_page(run, tmp_path, monkeypatch):
    row = {"label": "a probe", "value": 1.0, "seeds": 1, "seconds_of_all": 2.0}
    scores = {part: {"accuracy": 0.75, "f1": 0.8} for part in ("validation", "test")}
    ours = row | scores | {"probe": "convex", "relative_gap": 1e-6, "tokens": ["[CLS]"]}
    machine = {"cpu": "one", "cores": 2, "threads": 1, "versions": {"numpy": "2"}}
    results = {"command": "c", "date": "d", "text": "MRPC", "sizes": [3, 2, 100], "layer": 5}
    results |= {"model": "m", "majority": 0.66, "environment": machine, "rows": [ours]}
    monkeypatch.setattr(classification_probes, "run", lambda *_, **__: results)
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        ids = "1\t2" if "train" in name else "3\t4"
        lines = f"1\t{ids}\tOne.\tTwo.\n1\t5\t6\tThree.\tFour.\n"
        (tmp_path / name).write_text("head\n" + lines)
    (tmp_path / "dev_ids.tsv").write_text("5\t6\n")
    shown = run("reproduce", "paraphrase", "--mrpc", tmp_path, "--out", tmp_path / "out").stdout
    assert "75.0%" in shown and "1e-06" in shown
    assert "| a probe | 75.0% |" in (tmp_path / "out" / "paraphrase.md").read_text()


def test_mrpc_is_asked_for(run, tmp_path, monkeypatch):
    monkeypatch.delenv("CONVEXFORMER_MRPC", raising=False)
    stderr = run("reproduce", "paraphrase", "--out", tmp_path, code=2).stderr
    assert "have no labels; name MRPC's folder" in stderr and stderr.count("\n") == 1
